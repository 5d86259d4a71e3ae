"""What a set of checkpoints would take of a machine's memory, and what it could do there: loading's and admission's own
arithmetic over headers, without the machine and without a byte of weights.

    headers (named files, or the published ones) -> judged as for loading -> bytes a component
    the same models on meta (`unfilled`) -> what a request takes -> the longest clip on each canvas
    the machine's memory (`machines`, or this one's) -> its budget -> which `H3_RESIDENCY` fits, and is a start refused?

Nothing here adds up otherwise than a server does: `load` judges and refuses, `memory_estimate` predicts, `residency`
moves, `memory_budget` knows what there is. What none of them counts because a driver takes it has lines of its own.
Asked by the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.fused.base import Producers
from h3runtime.backends.fused.select import producer_families
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.policy import row_of
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.verify import Verification
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.core import MIN_FRAMES, GenerateSpec, SamplerSettings, Task
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.block_allocator import BlockAllocator
from h3runtime.engine.components import Part
from h3runtime.engine.estimating import Known
from h3runtime.engine.gates import why_no_gates
from h3runtime.engine.linear_memory import resident_bytes
from h3runtime.engine.load import (
    Judged,
    Models,
    Vaes,
    require_device_room,
    require_loadable,
    require_matching,
    stored_formats,
)
from h3runtime.engine.memory_budget import Budget, budget_of
from h3runtime.engine.memory_estimate import MemoryEstimate, ModelSizes, sizes_of
from h3runtime.engine.places import Place
from h3runtime.engine.planned_linear import Candidates, candidates, thinkable
from h3runtime.engine.refine_estimate import memory_of
from h3runtime.engine.residency import ALL, RESIDENCIES, held_weights, why_illegal
from h3runtime.engine.resident import COMPUTE_DTYPE
from h3runtime.engine.unfilled import Unfilled, unfilled
from h3runtime.errors import CheckpointError, SettingsError
from h3runtime.packing.geometry import Size, frames_at_most
from h3runtime.settings import GIB, MIB, Settings
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae

CANVASES: Final = (Size(1344, 768), Size(1024, 1024), Size(960, 544), Size(864, 480), Size(640, 384), Size(320, 192))
"""The largest trained ones, wide and square, and those of the benchmarks' contracts; upright ones take the same."""
USUAL_FRAMES: Final = 124
PROMPT_ROWS: Final = 100
"""Tokens of the benchmarks' prompt."""
STEPS: Final = 12
WORKSPACES: Final = 48 * MIB
"""What libraries hold of PyTorch's allocator between requests: on an H200 32 MiB after a load, 41 after a clip."""
HOST_PROCESSES: Final = 3 * GIB
"""Resident sizes of the engine, the API and an encoder, where these share the device's memory: 2.4 GiB of an engine
after a clip, the rest is a guess."""


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of one thing. allocated: what PyTorch's allocator counts for them, once it has rounded. file, file_bytes,
    format: of a component's."""

    name: str
    bytes: int
    allocated: int = 0
    file: str = ""
    file_bytes: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A clip on one canvas. peak_bytes: with everything that is resident. memory: its parts, as `/estimate` has them.
    longest: frames of the longest that fits, None where none does."""

    width: int
    height: int
    frames: int
    rows: int
    peak_bytes: int
    fits: bool
    memory: Mapping[str, int]
    longest: int | None
    longest_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Chosen:
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Residency:
    """One value of `H3_RESIDENCY`. why_not: it can't be had there, or a server with it refuses to start; "" if it can
    be used. linear: what its transformers are loaded for. weights: a line a component. conditioning, sampling, decode:
    bytes of weights on the device in each stage. host: page-locked."""

    name: str
    why_not: str
    linear: Chosen
    weights: tuple[Line, ...]
    conditioning: int
    sampling: int
    decode: int
    host: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """budget: of the place's memory, less what a driver takes. fixed: what is there before any request beside the
    weights. chosen: the first residency that can be used, "" where none can."""

    place: Place
    budget: Budget
    attention: Chosen
    fixed: tuple[Line, ...]
    residencies: tuple[Residency, ...]
    chosen: str

    @property
    def shown(self) -> Residency:
        """The chosen one, or the first where none can be used."""
        return next((found for found in self.residencies if found.name == self.chosen), self.residencies[0])

    @property
    def fixed_bytes(self) -> int:
        return sum(line.bytes for line in self.fixed)


def plan(parts: Sequence[Part], place: Place, settings: Settings, shapes: Sequence[tuple[int, int, int]] = ()) -> Plan:
    """Of all three residencies. shapes: width, height and frames of clips; by default the usual ones.

    CheckpointError or SettingsError as loading the files would have it; BackendUnavailable or InvalidRequest for a
    backend that is named and that the machine hasn't got.
    """
    outside = outside_lines(place)
    budget = _less(budget_of(place.memory, settings.system_reserve_bytes), sum(line.bytes for line in outside))
    planner = _Planner(parts, place, settings, budget)
    asked = list(shapes) or [(size.width, size.height, USUAL_FRAMES) for size in CANVASES]
    residencies = tuple(planner.residency(name, asked) for name in RESIDENCIES)
    chosen = next((found.name for found in residencies if not found.why_not), "")
    return Plan(place, budget, planner.attention, (*outside, *held_lines(settings)), residencies, chosen)


def outside_lines(place: Place) -> tuple[Line, ...]:
    """What PyTorch's allocator knows nothing of, and no free memory has been told less of yet."""
    lines = [Line("CUDA context and kernels", place.context)] if place.context else []
    if place.context and place.memory.kind == "integrated":
        lines.append(Line("engine, API and ffmpeg on the host", HOST_PROCESSES))
    return tuple(lines)


def held_lines(settings: Settings) -> tuple[Line, ...]:
    """What an engine holds before any request beside its weights."""
    lines = [Line("workspaces of libraries", WORKSPACES, WORKSPACES)]
    if settings.cuda_graphs == "on":
        lines.append(Line("recorded steps, at most", settings.cuda_graph_bytes))
    if settings.lora_dir is not None:
        lines.append(Line("adapters, at most", settings.lora_cache_bytes))
    return tuple(lines)


def _less(budget: Budget, outside: int) -> Budget:
    if budget.loadable is None:
        return budget
    return replace(budget, free=max(0, budget.free - outside), loadable=max(0, budget.loadable - outside))


def _unverified(file: CheckpointFile) -> Verification:
    """Nothing is hashed for a plan."""
    return Verification((), full=False, cache_dir=None, made_up=file.synthetic)


def _judged(parts: Sequence[Part], place: Place, settings: Settings) -> tuple[Candidates, list[Judged]]:
    """What `auto` takes depends on how transformers are stored, which is known once they are judged."""
    options = Nvfp4Options.of(settings)
    judged = require_loadable(parts, _unverified, thinkable(settings.linear, place, options))
    require_matching(judged)
    return candidates(settings.linear, place, stored_formats(judged), options), judged


def _line(found: Judged, linear: LinearBackend[Any]) -> Line:
    weights = found.weights(linear)
    name = f"transformer {weights.name}" if weights.partition else weights.name
    return Line(name, weights.bytes, 0, weights.file, found.file_bytes, ", ".join(sorted(found.formats)))


class _Planner:
    """Asks for one machine and one set: headers are judged once, and models made once for each linear backend."""

    def __init__(self, parts: Sequence[Part], place: Place, settings: Settings, budget: Budget) -> None:
        self.place, self.settings, self.budget = place, settings, budget
        self.candidates, self.judged = _judged(parts, place, settings)
        (self.units,) = (found.units for found in self.judged if found.units is not None)
        self._made: dict[str, list[Unfilled]] = {}
        self.attentions = self._attentions()
        backend, why = self.attentions.resolve(settings.attention)
        self.attention = Chosen(backend.name, why)

    def _models(self, linear: LinearBackend[Any]) -> list[Unfilled]:
        """In the order of loading: transformers, text encoder, both VAEs."""
        if linear.name not in self._made:
            made = [unfilled(found.part, linear) for found in self.judged]
            for each in made:
                if isinstance(each.module, Dit):
                    each.module.producers = self._producers()
            self._made[linear.name] = made
        return self._made[linear.name]

    def _lines(self, linear: LinearBackend[Any], residency: str = ALL) -> tuple[Line, ...]:
        """Of each component that is always on the device, in the order of loading."""
        allocator = BlockAllocator()
        lines = []
        for found, made in zip(self.judged, self._models(linear), strict=True):
            if found.part.component == "text_encoder" and residency != ALL:
                continue
            line = _line(found, linear)
            on_host = self.place.device.type == "cpu"
            lines.append(replace(line, allocated=line.bytes if on_host else allocator.take(made.allocations)))
        return tuple(lines)

    def _producers(self) -> Producers:
        """Named, or the first of the architecture's row; there is no device to ask whether it can run."""
        families = {found.name: found for found in producer_families(Nvfp4Options.of(self.settings))}
        facts = self.place.linear
        if facts.kind == "cpu":
            del families["triton"]
        order = (self.settings.fused, *row_of(facts.kind, facts.capability).producers.value)
        return next(families[name] for name in order if name in families)

    def _networks(self, linear: LinearBackend[Any]) -> dict[str, Dit]:
        models = zip(self.judged, self._models(linear), strict=True)
        return {str(found.part.partition): made.module for found, made in models if isinstance(made.module, Dit)}

    def _attentions(self) -> Attentions:
        options = AttentionOptions.of(self.settings)
        attentions = Attentions(self.place.device, options, facts=self.place.attention)
        linear, _ = self.candidates.settled(self.judged, ALL, COMPUTE_DTYPE, self.budget)
        networks = list(self._networks(linear).values())
        attentions.fit({network.config.head_dim for network in networks}, why_no_gates(networks))
        return attentions

    def residency(self, name: str, asked: Sequence[tuple[int, int, int]]) -> Residency:
        linear, why = self.candidates.settled(self.judged, name, COMPUTE_DTYPE, self.budget)
        weights = self._lines(linear)
        others = sum(f.weights(linear).bytes for f in self.judged if f.part.component != "text_encoder")
        held = held_weights(name, self.units, others)
        why_not = self._why_not(name, linear)
        sizes = None if why_not else self._sizes(name, linear)
        jobs = () if sizes is None else tuple(self._job(sizes, *shape) for shape in asked)
        stages = held.conditioning, held.sampling, held.decode, held.host
        return Residency(name, why_not, Chosen(linear.name, why), weights, *stages, jobs)

    def _why_not(self, name: str, linear: LinearBackend[Any]) -> str:
        """Why a server with it doesn't start."""
        is_integrated = self.place.memory.kind == "integrated"
        if (why := why_illegal(name, self.place.device.type, is_integrated=is_integrated)) is not None:
            return why
        try:
            require_device_room(self.judged, linear, name, COMPUTE_DTYPE, self.budget, self.place.device)
        except (CheckpointError, SettingsError) as refusal:
            return refusal.message
        return ""

    def _sizes(self, residency: str, linear: LinearBackend[Any]) -> ModelSizes:
        networks = self._networks(linear)
        encoder, video, audio = (made.module for made in self._models(linear)[len(networks) :])
        assert isinstance(encoder, TextEncoder) and isinstance(video, VideoVae) and isinstance(audio, AudioVae)
        models = Models(networks, encoder, Vaes(video, audio, ()), (), (), residency, self.units)
        weights = resident_bytes(models.modules())
        rounding = sum(line.allocated - line.bytes for line in self._lines(linear, residency))
        held = weights + rounding + sum(line.bytes for line in held_lines(self.settings))
        workspace = partial(self.attentions.workspace_bytes, {self.attention.name})
        sizes = sizes_of(models, self._task, held, weights, attention=workspace)
        return replace(sizes, computing=replace(sizes.computing, on_host=self.place.device.type == "cpu"))

    def _job(self, sizes: ModelSizes, width: int, height: int, frames: int) -> Job:
        spec, known, capacity = self._spec(width, height, frames), Known(PROMPT_ROWS, {}, len), self.budget.capacity

        def taken(frames: int) -> MemoryEstimate:
            return memory_of(sizes, None, known.demands(replace(spec, frames=frames)))

        found, longest = taken(frames), frames_at_most(self.settings.max_frames)
        while longest is not None and taken(longest).total > capacity:
            longest = frames_at_most(longest - 1) if longest > MIN_FRAMES else None
        return Job(
            width,
            height,
            frames,
            sum(rows for _, rows in known.rows(spec)),
            found.total,
            found.total <= capacity,
            found.told(),
            longest,
            None if longest is None else taken(longest).total,
        )

    @property
    def _task(self) -> Task:
        """One that a transformer of the set is for, and that needs no media."""
        partitions = {found.part.partition for found in self.judged}
        return next(task for task in (Task.T2VA, Task.REF2VA) if task.runs_on in partitions)

    def _spec(self, width: int, height: int, frames: int) -> GenerateSpec:
        sampling, output = SamplerSettings(steps=STEPS), Path("plan.mp4")
        return GenerateSpec("plan", self._task, "", width, height, frames, sampling, output, Path())

"""What a request would take of this engine: rows, forwards, work, memory, and what would fit instead.

Nothing is computed on the device and nothing of a request's size is allocated: texts are tokenised, sounds are measured
by their packets, all else is arithmetic on sizes. So it may be asked from any thread, also while a clip is made; it
shares the tokenizer and the models' sizes with that, which nobody changes. Fed by `resident` once all is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from h3runtime.backends.attention.select import Attentions
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import MIN_FRAMES, MIN_SIDE, SIDE_MULTIPLE, Estimate, GenerateSpec, Work
from h3runtime.denoiser.recordings import Recordings
from h3runtime.engine.adapters import AdapterShelf
from h3runtime.engine.demand import Demand, Rows, as_shown, rows_by_kind
from h3runtime.engine.linear_memory import resident_bytes
from h3runtime.engine.load import Models
from h3runtime.engine.memory_budget import capacity_bytes, held_bytes
from h3runtime.engine.memory_estimate import MemoryEstimate, ModelSizes, sizes_of
from h3runtime.engine.memory_formulas import Workspace, nothing
from h3runtime.engine.refine_estimate import demands_of, memory_of, work_of_passes
from h3runtime.engine.refine_passes import asked_canvas, on_canvas, passes_of
from h3runtime.engine.refine_upscaler import UpscalerShelf
from h3runtime.engine.sound_lengths import SoundLengths
from h3runtime.packing.geometry import Size, frames_at_most
from h3runtime.packing.rows import segment_rows
from h3runtime.vae.upscaler_config import UpscalerConfig


@dataclass(frozen=True, slots=True)
class Known:
    """What a request's sizes don't tell: tokens of its prompt, latents of its sounds."""

    prompt_rows: int
    sounds: Mapping[str, int]
    rows_of_label: Callable[[str], int]

    def rows(self, spec: GenerateSpec) -> Rows:
        segments = segment_rows(as_shown(spec), self.prompt_rows, self.sounds, self.rows_of_label)
        return tuple((segment.kind, segment.rows) for segment in segments)

    def demands(self, spec: GenerateSpec) -> tuple[Demand, ...]:
        """Of each pass."""
        return demands_of(spec, [self.rows(each) for each in passes_of(spec)])


class Estimator:
    """Knows what the engine holds from when it is made, and from `begin`, before any request. adapters: asked for what
    would be resident of them; None where there are none. attentions: asked for what the backends of a request take,
    where it names none the one called `attention`; None where they take nothing. upscaler: of requests that ask to be
    refined; None where there is none. recordings: of steps, which hold memory between requests. reserve:
    bytes that the system keeps; None is the device kind's own."""

    def __init__(
        self,
        models: Models,
        tokenizer: PromptTokenizer,
        device: torch.device,
        adapters: AdapterShelf | None = None,
        attentions: Attentions | None = None,
        attention: str = "",
        upscaler: UpscalerShelf | None = None,
        recordings: Recordings | None = None,
        reserve: int | None = None,
    ) -> None:
        self._models, self._tokenizer, self._device = models, tokenizer, device
        self._weights = resident_bytes(models.modules())
        self._adapters = adapters
        self.upscaler = upscaler
        self._recordings, self._reserve = recordings, reserve
        self._attentions, self._attention = attentions, attention
        self._sounds = SoundLengths()
        self.begin()

    def begin(self) -> None:
        """What is held now is what is held between requests."""
        shelves = (self._adapters, self.upscaler, self._recordings)
        self._held = held_bytes(self._device) - sum(shelf.bytes for shelf in shelves if shelf is not None)

    def estimate(self, spec: GenerateSpec) -> Estimate:
        """BadMedia for a file that is gone, InvalidRequest for a task whose transformer isn't loaded or an illegal
        schedule."""
        sizes = self._sizes(spec)
        known = Known(self._rows_of(spec.prompt), self._sounds.latents(spec), self._rows_of)
        demands = known.demands(spec)
        memory = memory_of(sizes, self._upscaling, demands)
        capacity = capacity_bytes(self._device, self._reserve)
        return Estimate(
            rows=rows_by_kind(known.rows(passes_of(spec)[-1])),
            forwards=sum(demand.steps.computed for demand in demands),
            work=work_of_passes(sizes, self._upscaling, demands),
            memory=memory.told(),
            peak_bytes=memory.total,
            capacity_bytes=capacity,
            would_fit="" if memory.total <= capacity else would_fit(spec, known, sizes, capacity, self._upscaling),
        )

    def memory(self, spec: GenerateSpec, rows: Sequence[Rows]) -> MemoryEstimate:
        """Of a request whose packed rows are known. rows: of each pass."""
        return memory_of(self._sizes(spec), self._upscaling, demands_of(spec, rows))

    def done(self, spec: GenerateSpec, timings: Mapping[str, float]) -> Work:
        """The work of a request that took so long."""
        stages = self.estimate(spec).work.stages
        return Work(stages, {stage: timings[stage] for stage in stages})

    def _sizes(self, spec: GenerateSpec) -> ModelSizes:
        shelf = self._adapters
        adapters = 0 if shelf is None else shelf.bytes_with(spec.loras, spec.task.runs_on)
        workspace = self._workspace(spec)
        held = self._held + (0 if self._recordings is None else self._recordings.bytes)
        rank = None if shelf is None else shelf.rank_of(spec.loras)
        sizes = sizes_of(self._models, spec.task, held, self._weights, adapters, spec.linear, workspace, rank)
        return sizes if self.upscaler is None else replace(sizes, upscaler=self.upscaler.bytes_with(spec.refine))

    @property
    def _upscaling(self) -> UpscalerConfig | None:
        return None if self.upscaler is None else self.upscaler.config

    def _workspace(self, spec: GenerateSpec) -> Workspace:
        names = set(spec.attention_plan) or {spec.attention or self._attention}
        return nothing if self._attentions is None else partial(self._attentions.workspace_bytes, names)

    def _rows_of(self, text: str) -> int:
        return len(self._tokenizer.encode(text))


def would_fit(
    spec: GenerateSpec, known: Known, sizes: ModelSizes, capacity: int, upscaler: UpscalerConfig | None = None
) -> str:
    """The longest clip of this canvas and the largest canvas of this length, near the same aspect, that fit; canvases
    as requests name them, ahead of refining."""

    def fits(other: GenerateSpec) -> bool:
        return memory_of(sizes, upscaler, known.demands(other)).total <= capacity

    shorter = next((s for s in _shorter(spec) if fits(s)), None)
    smaller = next((s for s in _smaller(spec) if fits(s)), None)
    told = []
    if shorter is not None:
        told.append(f"frames {shorter.frames} at {_told(spec)}")
    if smaller is not None:
        told.append(f"{_told(smaller)} at {spec.frames} frames")
    return " or ".join(told) or "no length at this size, and no size at this length"


def _shorter(spec: GenerateSpec) -> Iterator[GenerateSpec]:
    frames = frames_at_most(spec.frames - 1)
    while frames is not None:
        yield replace(spec, frames=frames)
        frames = frames_at_most(frames - 1) if frames > MIN_FRAMES else None


def _smaller(spec: GenerateSpec) -> Iterator[GenerateSpec]:
    """The longer side shrinks by 32 px at a time, the other keeps the aspect."""
    canvas = asked_canvas(spec)
    longer, shorter = max(canvas), min(canvas)
    for side in range(longer - SIDE_MULTIPLE, MIN_SIDE - 1, -SIDE_MULTIPLE):
        other = max(MIN_SIDE, round(shorter * side / longer / SIDE_MULTIPLE) * SIDE_MULTIPLE)
        yield on_canvas(spec, Size(side, other) if canvas.width >= canvas.height else Size(other, side))


def _told(spec: GenerateSpec) -> str:
    canvas = asked_canvas(spec)
    return f"{canvas.width}x{canvas.height}"

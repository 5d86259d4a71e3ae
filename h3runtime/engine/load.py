"""Checkpoint files -> finished models on one device, each byte read once and known to be the right one.

The models say what they need, `checkpoint` checks and fills them; what is left to do here is the order, the figures and
the questions that need several files at once (does this encoder feed both transformers, is there room for all?). Read
by `resident`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from h3runtime.backends.cnn.select import steps_named
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.select import NO_NATIVE, NativeLinear, choose_vae_linear, require_packer
from h3runtime.backends.vit.select import choose_steps
from h3runtime.checkpoint.families import adaln_form
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.hashing import sha256_of_parts
from h3runtime.checkpoint.load import LoadReport, judge, judge_values, load_module
from h3runtime.checkpoint.partition import FL2VA
from h3runtime.checkpoint.stream import Reading
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.checkpoint.verify import Verification, Verified
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.core import ComponentFacts, OnProgress, Task
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.engine import components, room
from h3runtime.engine.components import NEED, Part
from h3runtime.engine.load_meter import LoadMeter, Portion
from h3runtime.engine.memory_budget import Budget, current_budget
from h3runtime.engine.paths import ModelPaths
from h3runtime.engine.residency import ALL, ENCODER_DISK, ENCODER_HOST, NO_UNITS, Units, held_weights, units_of
from h3runtime.engine.visits import lodge
from h3runtime.errors import BackendUnavailable, CheckpointError, InvalidRequest, Offence, encodable, invalid
from h3runtime.settings import PARTITION_PATHS, Settings, default_cache_dir, variable
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae

SHOWN_DIGITS = 12
"""Of the digest over all components; 48 bits tell apart what one server may ever load."""

HOMES = {ENCODER_HOST: torch.device("cpu"), ENCODER_DISK: torch.device("meta")}
"""Where a moved component is loaded to."""
OnComponent = Callable[[ComponentFacts], None]


@dataclass(frozen=True, slots=True)
class Vaes:
    """Both decoders and encoders, and the facts about their files."""

    video: VideoVae
    audio: AudioVae
    facts: tuple[ComponentFacts, ...]


@dataclass(frozen=True, slots=True)
class Models:
    """Everything resident. `facts` are in the order of loading: transformers, text encoder, video VAE, audio VAE.

    transformers: by partition, one or both. warnings: what is odd about the files and no reason to refuse them.
    residency, encoder_units: where the text encoder's weights are, and what they are moved in, if they are.
    """

    transformers: Mapping[str, Dit]
    text_encoder: TextEncoder
    vaes: Vaes
    facts: tuple[ComponentFacts, ...]
    warnings: tuple[str, ...] = ()
    residency: str = ALL
    encoder_units: Units = NO_UNITS

    def transformer_of(self, task: Task) -> Dit:
        """The one whose weights are for `task`; InvalidRequest, naming the setting, if it isn't loaded."""
        found = self.transformers.get(task.runs_on)
        if found is None:
            raise _not_loaded(task, self.transformers)
        return found

    def modules(self) -> tuple[nn.Module, ...]:
        """Those whose weights are always on the device."""
        staying = (self.text_encoder,) if self.residency == ALL else ()
        return (*self.transformers.values(), *staying, self.vaes.video, self.vaes.audio)

    def host_facts(self) -> dict[str, int]:
        """Bytes of the host's memory that weights are page-locked in, where they are."""
        lodging = self.text_encoder.lodging
        return {} if lodging is None else {"host_locked_bytes": lodging.host_bytes}

    def close(self) -> None:
        """Give back what isn't the device's."""
        if self.text_encoder.lodging is not None:
            self.text_encoder.lodging.close()

    def facts_of(self, component: str) -> ComponentFacts:
        """Of a component that there is one of."""
        (found,) = (part for part in self.facts if part.component == component)
        return found

    def made_up(self, task: Task | None = None) -> bool:
        """Whether the transformer that `task` runs on has made-up weights; any that is loaded, without a task."""
        return any(
            part.synthetic
            for part in self.facts
            if part.partition is not None and (task is None or part.partition == task.runs_on)
        )


def _not_loaded(task: Task, loaded: Mapping[str, Dit]) -> InvalidRequest:
    field = variable(PARTITION_PATHS[task.runs_on])
    told = f"{NEED[task.runs_on]} the {task.runs_on} transformer, which isn't loaded: {field} names its file"
    return invalid([Offence("task", told, ", ".join(other for other in Task if other.runs_on in loaded))])


@dataclass(frozen=True, slots=True)
class Judged:
    """A part whose header is without fault: bytes of its files, its model's sizes, bytes of what it leaves resident
    with a linear backend, by name, how the layers that follow the choice are stored, and what a text encoder would be
    moved in."""

    part: Part
    file_bytes: int
    config: Any
    resident_bytes: Mapping[str, int]
    formats: frozenset[str]
    units: Units | None = None

    def weights(self, linear: LinearBackend[Any]) -> room.Weights:
        name = self.part.partition or self.part.component.replace("_", " ").replace("vae", "VAE")
        return room.Weights(name, self.part.path.name, self.resident_bytes[linear.name], self.part.partition)


OpenVerification = Callable[[CheckpointFile], Verification]


def require_loadable(
    parts: Sequence[Part], verification: OpenVerification, linears: Sequence[LinearBackend[Any]]
) -> list[Judged]:
    """Every header against its model, and every remembered digest, before any data is read, and all faults of all files
    at once: with real weights the last file is minutes away. linears: those that may be loaded for."""
    faults: list[CheckpointError] = []
    found: list[Judged] = []
    for part in parts:
        try:
            found.append(_judged(part, verification, linears))
        except CheckpointError as error:
            faults.append(error)
    if faults:
        raise CheckpointError("; ".join(e.message for e in faults), [o for e in faults for o in e.offences])
    return found


def _judged(part: Part, verification: OpenVerification, linears: Sequence[LinearBackend[Any]]) -> Judged:
    with part.open() as file:
        verification(file).judge()
        module: Any = part.on_meta(file)
        offences = list(judge(module, file, part.rule))
        if offences:
            raise checkpoint_error(part.path, offences)
        resident = {n.name: room.resident_bytes(module, file, part.rule, part.linear or n) for n in linears}
        formats = part.rule.formats(file)
        return Judged(part, file.size, module.config, resident, formats, _units(part, module, file))


def _units(part: Part, module: nn.Module, file: CheckpointFile) -> Units | None:
    if part.component != "text_encoder":
        return None
    return units_of(room.resident_by_name(module, file, part.rule, DequantLinear()))


def checkpoint_name(facts: Sequence[ComponentFacts]) -> str:
    """Names all that is loaded, the first file by name: another file of any component gives another."""
    digest = sha256_of_parts({_key(part): part.sha256 for part in facts})
    return f"{facts[0].file}:{digest[:SHOWN_DIGITS]}"


def _key(part: ComponentFacts) -> str:
    """Of what both partitions share, and of FL2VA's transformer, as in sets that have no other: these keep the names
    under which jobs were admitted."""
    return part.component if part.partition in (None, FL2VA) else f"{part.component}:{part.partition}"


class Loader:
    """Loads components one after the other. on_component: told of each one as soon as it is there.

    linear: of the transformers' layers that follow the choice. native: what takes its place if all of them are stored
    in its format; spare: if memory is short of what it keeps. `linear` and `why_form` tell what was loaded for, and why
    it isn't what was asked for; `passed`, why the native one isn't, where it could have been. vae_steps: what
    the video decoder takes between its products, vae_linear: for these; BackendUnavailable at once if one can't run.
    """

    def __init__(
        self,
        settings: Settings,
        paths: ModelPaths,
        device: torch.device,
        linear: LinearBackend[Any],
        on_progress: OnProgress,
        on_component: OnComponent = lambda _: None,
        spare: LinearBackend[Any] | None = None,
        native: NativeLinear = NO_NATIVE,
    ) -> None:
        self.settings, self.paths, self.device, self.linear = settings, paths, device, linear
        self.spare, self.native, self.why_form, self.passed = spare, native, "", ""
        self.vae_steps, self.why_vae_steps = choose_steps(settings.vae_fused, device)
        self.vae_linear, self.why_vae_linear = choose_vae_linear(settings.vae_linear, device)
        self._on_progress, self._on_component = on_progress, on_component
        self._warnings: list[str] = []

    def models(self, compute_dtype: torch.dtype) -> Models:
        """All components. CheckpointError names the files and every tensor that is wrong; with SettingsError, before
        any data is read, what doesn't fit together or into memory."""
        judged = require_loadable(self._all_parts(compute_dtype), self._verification, self._linears())
        require_matching(judged)
        self._choose_form(judged, compute_dtype)
        self._require_room(judged, compute_dtype)
        modules, facts = self._load_all(judged)
        *transformers, encoder, video, audio = modules
        assert isinstance(encoder, TextEncoder) and isinstance(video, VideoVae) and isinstance(audio, AudioVae)
        vaes = self._vaes_of(video, audio, facts[len(transformers) + 1 :])
        by_partition, residency = _by_partition(judged, transformers), self.settings.residency
        warnings = tuple(self._warnings)
        return Models(by_partition, encoder, vaes, facts, warnings, residency, _encoder_units(judged))

    def vaes(self) -> Vaes:
        judged = require_loadable(self._vae_parts(), self._verification, self._linears())
        (video, audio), facts = self._load_all(judged)
        assert isinstance(video, VideoVae) and isinstance(audio, AudioVae)
        return self._vaes_of(video, audio, facts)

    def _vaes_of(self, video: VideoVae, audio: AudioVae, facts: tuple[ComponentFacts, ...]) -> Vaes:
        video.take_steps(self.vae_steps, steps_named(self.vae_steps.name))
        return Vaes(video, audio, facts)

    def _linears(self) -> tuple[LinearBackend[Any], ...]:
        return tuple(each for each in (self.linear, self.spare, self.native.backend) if each is not None)

    def _choose_form(self, judged: Sequence[Judged], compute_dtype: torch.dtype) -> None:
        """BackendUnavailable for a backend that has nothing to do or whose input nobody can pack; the native one where
        every transformer is stored for it, the spare one if memory is short."""
        require_format(self.linear, judged)
        if self.native.serves(formats := stored_formats(judged)):
            assert self.native.backend is not None
            require_packer(self.native.backend, self.device)
            self.linear, self.spare, self.why_form = self.native.backend, None, self.native.why
            return
        self.passed = self.native.why_passed(formats)
        if self.spare is None:
            return
        short = why_spared(self.linear, judged, self.settings.residency, compute_dtype, self._budget())
        if short is not None:
            self.why_form = room.why_decoding(short)
            self.linear, self.spare = self.spare, None

    def _require_room(self, judged: Sequence[Judged], compute_dtype: torch.dtype) -> None:
        """On the device for what stays there and the more of a clip and of what comes to read its prompt; on the host
        for what waits there."""
        residency, budget = self.settings.residency, self._budget()
        require_device_room(judged, self.linear, residency, compute_dtype, budget, self.device)
        if residency == ENCODER_HOST:
            room.require_host_room(_encoder_units(judged), current_budget(torch.device("cpu")))

    def _moves(self, part: Part) -> bool:
        return _moves(part, self.settings.residency)

    def _budget(self) -> Budget:
        return current_budget(self.device, self.settings.system_reserve_bytes)

    def require_finite(self, compute_dtype: torch.dtype) -> None:
        """After a run whose numbers were not: CheckpointError if a file's own are the reason, naming every tensor.

        Not on every start: all that was loaded is read once more.
        """
        faults: list[CheckpointError] = []
        for part in self._all_parts(compute_dtype):
            with part.open() as file:
                if offences := list(judge_values(file, part.rule)):
                    faults.append(checkpoint_error(part.path, offences))
        if faults:
            raise CheckpointError("; ".join(e.message for e in faults), [o for e in faults for o in e.offences])

    def _all_parts(self, compute_dtype: torch.dtype) -> tuple[Part, ...]:
        return (
            *(
                components.transformer(path, self.settings, compute_dtype, partition)
                for partition, path in self.paths.transformers.items()
            ),
            components.text_encoder(self.paths.text_encoder),
            *self._vae_parts(),
        )

    def _vae_parts(self) -> tuple[Part, Part]:
        video = components.video_vae(self.paths.video_vae, self.settings, self.vae_linear)
        return video, components.audio_vae(self.paths.audio_vae)

    def _load_all(self, judged: Sequence[Judged]) -> tuple[list[nn.Module], tuple[ComponentFacts, ...]]:
        portions = [Portion(found.part.component, found.part.partition, found.file_bytes) for found in judged]
        meter = LoadMeter(portions, self._on_progress)
        loaded = []
        for index, found in enumerate(judged):
            meter.begin(index)
            loaded.append(self._load(found.part, meter))
        return [module for module, _ in loaded], tuple(facts for _, facts in loaded)

    def _verification(self, file: CheckpointFile) -> Verification:
        full = self.settings.verify == "full"
        return Verification(file.parts, full=full, cache_dir=default_cache_dir(), made_up=file.synthetic)

    def _load(self, part: Part, meter: LoadMeter) -> tuple[nn.Module, ComponentFacts]:
        residency = self.settings.residency if self._moves(part) else ALL
        home = HOMES.get(residency, self.device)
        with part.open() as file:
            module = part.on_meta(file)
            verification = self._verification(file)
            reading = Reading(verification.unknown, verification.found, meter.at)
            linear = part.linear or self.linear
            report = load_module(module, file, linear=linear, device=home, rule=part.rule, reading=reading)
            verified = verification.finish()
        module.eval().requires_grad_(False)
        if residency != ALL:
            assert isinstance(module, TextEncoder)
            lodge(module, part, file, residency, self.device, lambda: meter.at(file.size))
        facts = _facts(part, file, report, verified)
        self._warnings += facts.warnings
        self._on_component(facts)
        return module, facts


def _encoder_units(judged: Sequence[Judged]) -> Units:
    (found,) = (found.units for found in judged if found.units is not None)
    return found


def why_spared(
    linear: LinearBackend[Any], judged: Sequence[Judged], residency: str, compute_dtype: torch.dtype, budget: Budget
) -> str | None:
    """Why the spare backend takes the place of `linear`: what that keeps leaves too little for the longest clip."""
    weights = [found.weights(linear) for found in _staying(judged, residency)]
    return room.why_short(weights, _working(judged, compute_dtype, room.LONGEST_ROWS), budget)


def require_device_room(
    judged: Sequence[Judged],
    linear: LinearBackend[Any],
    residency: str,
    compute_dtype: torch.dtype,
    budget: Budget,
    device: torch.device,
) -> None:
    """As `room.require_room`, of what stays on the device and the more of a clip and of what reads its prompt."""
    encoder, is_all = _encoder_units(judged), residency == ALL
    needs = room.Needs(
        sampling=_working(judged, compute_dtype, room.ROWS),
        reading=0 if is_all else held_weights(residency, encoder, 0).conditioning,
        movable=encoder.total - held_weights(ENCODER_HOST, encoder, 0).conditioning if is_all else 0,
    )
    room.require_room([found.weights(linear) for found in _staying(judged, residency)], needs, budget, device)


def _staying(judged: Sequence[Judged], residency: str) -> list[Judged]:
    """What is always on the device."""
    return [found for found in judged if not _moves(found.part, residency)]


def _moves(part: Part, residency: str) -> bool:
    return part.component == "text_encoder" and residency != ALL


def _working(judged: Sequence[Judged], compute_dtype: torch.dtype, rows: int) -> int:
    """Of a clip of so many rows on the wider transformer."""
    configs = [found.config for found in judged if found.part.component == "transformer"]
    return max(room.working_bytes(config, compute_dtype, rows) for config in configs)


def stored_formats(judged: Sequence[Judged]) -> list[frozenset[str]]:
    """Of each transformer, how the layers that follow the choice are stored."""
    return [found.formats for found in judged if found.part.component == "transformer"]


def require_format(linear: LinearBackend[Any], judged: Sequence[Judged]) -> None:
    """BackendUnavailable if `linear` is for one stored format alone, and a transformer has no layer of it."""
    for found in judged:
        if linear.only and found.part.component == "transformer" and linear.only not in found.formats:
            stored = ", ".join(sorted(found.formats)) or room.PLAIN
            told = f"{found.part.path.name} has no layer stored as {linear.only} (it has {stored})"
            raise BackendUnavailable(f"linear: {linear.name} can't be loaded for: {told}", [Offence("linear", told)])


def _facts(part: Part, file: CheckpointFile, report: LoadReport, verified: Verified) -> ComponentFacts:
    return ComponentFacts(
        component=part.component,
        file=encodable(part.path.name),
        sha256=verified.sha256,
        format=report.format,
        bytes=report.bytes,
        load_seconds=report.seconds,
        synthetic=report.synthetic,
        partition=part.partition,
        bytes_per_second=report.bytes / max(report.seconds, 1e-9),
        qkv=None if file.qkv is None else f"{file.qkv.order} ({file.qkv.how}: {file.qkv.why})",
        warnings=tuple(map(encodable, (*file.warnings, *verified.warnings))),
        adaln=adaln_form(file.shapes) if part.component == "transformer" else None,
        model=None if file.model is None else encodable(file.model),
        trained_frames=file.trained_frames,
    )


def _by_partition(judged: Sequence[Judged], transformers: Sequence[nn.Module]) -> dict[str, Dit]:
    """They come first among what was judged."""
    found = {}
    for first, module in zip(judged[: len(transformers)], transformers, strict=True):
        assert isinstance(module, Dit) and first.part.partition is not None
        found[first.part.partition] = module
    return found


def require_matching(judged: Sequence[Judged]) -> None:
    """CheckpointError listing every pair of files whose widths don't meet, of all transformers with all they share."""
    transformers = [found for found in judged if found.part.component == "transformer"]
    offences = [
        Offence(other.part.path.name, f"{what} {has}, but {transformer.part.path.name} wants {wants}", str(wants))
        for transformer in transformers
        for other in judged
        for what, has, wants in _widths(other, transformer.config)
        if has != wants
    ]
    if offences:
        raise CheckpointError("; ".join(f"{o.field}: {o.message}" for o in offences), offences)


def _widths(other: Judged, transformer: DitConfig) -> Iterator[tuple[str, int, int]]:
    """What, how much `other` has of it, and how much the transformer wants."""
    match other.part.component:
        case "text_encoder":
            yield "hidden size", other.config.hidden, transformer.text_dim
        case "video_vae":
            yield "latent channels", other.config.latent_channels, transformer.channels
        case "audio_vae":
            yield "latent channels", other.config.latent_channels, transformer.audio_channels

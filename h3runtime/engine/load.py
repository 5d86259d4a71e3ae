"""Checkpoint files -> finished models on one device, each byte read once and known to be the right one.

The models say what they need, `checkpoint` checks and fills them; what is left to do here is the order, the figures and
the questions that need two files at once (does this encoder feed that transformer?). Read by `resident`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.checkpoint.families import adaln_form
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.hashing import sha256_of_parts
from h3runtime.checkpoint.load import LoadReport, judge, judge_values, load_module
from h3runtime.checkpoint.partition import FL2VA
from h3runtime.checkpoint.stream import Reading
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.checkpoint.verify import Verification, Verified
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.core import ComponentFacts, OnProgress
from h3runtime.denoiser.dit import Dit
from h3runtime.engine import components
from h3runtime.engine.components import Part
from h3runtime.engine.load_meter import LoadMeter
from h3runtime.engine.paths import ModelPaths
from h3runtime.errors import CheckpointError, Offence, encodable
from h3runtime.settings import Settings, default_cache_dir
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae

SHOWN_DIGITS = 12
"""Of the digest over all components; 48 bits tell apart what one server may ever load."""

OnComponent = Callable[[ComponentFacts], None]


@dataclass(frozen=True, slots=True)
class Vaes:
    """Both decoders and encoders, and the facts about their files."""

    video: VideoVae
    audio: AudioVae
    facts: tuple[ComponentFacts, ...]


@dataclass(frozen=True, slots=True)
class Models:
    """Everything resident. `facts` are in the order of loading: transformer, text encoder, video VAE, audio VAE.

    warnings: what is odd about the files and no reason to refuse them.
    """

    transformer: Dit
    text_encoder: TextEncoder
    vaes: Vaes
    facts: tuple[ComponentFacts, ...]
    warnings: tuple[str, ...] = ()


OpenVerification = Callable[[CheckpointFile], Verification]


def require_loadable(parts: Sequence[Part], verification: OpenVerification) -> dict[str, int]:
    """Every header against its model, and every remembered digest, before any data is read, and all faults of all files
    at once: with real weights the last file is minutes away. Returns the files' bytes by component."""
    faults: list[CheckpointError] = []
    sizes: dict[str, int] = {}
    for part in parts:
        try:
            with part.open() as file:
                sizes[part.component] = file.size
                verification(file).judge()
                offences = list(judge(part.on_meta(file), file, part.rule))
            if offences:
                raise checkpoint_error(part.path, offences)
        except CheckpointError as error:
            faults.append(error)
    if faults:
        raise CheckpointError("; ".join(e.message for e in faults), [o for e in faults for o in e.offences])
    return sizes


def checkpoint_name(facts: Sequence[ComponentFacts]) -> str:
    """Names all that is loaded, the first file by name: another file of any component gives another."""
    digest = sha256_of_parts({part.component: part.sha256 for part in facts})
    return f"{facts[0].file}:{digest[:SHOWN_DIGITS]}"


class Loader:
    """Loads components one after the other. on_component: told of each one as soon as it is there."""

    def __init__(
        self,
        settings: Settings,
        paths: ModelPaths,
        device: torch.device,
        linear: LinearBackend[Any],
        on_progress: OnProgress,
        on_component: OnComponent = lambda _: None,
    ) -> None:
        self.settings, self.paths, self.device, self.linear = settings, paths, device, linear
        self._on_progress, self._on_component = on_progress, on_component
        self._warnings: list[str] = []

    def models(self, compute_dtype: torch.dtype) -> Models:
        """All four components. CheckpointError names the files and every tensor that is wrong."""
        (transformer, encoder, video, audio), facts = self._load_all(self._all_parts(compute_dtype))
        assert isinstance(transformer, Dit) and isinstance(encoder, TextEncoder)
        assert isinstance(video, VideoVae) and isinstance(audio, AudioVae)
        vaes = Vaes(video, audio, facts[2:])
        require_matching(transformer, encoder, vaes, self.paths)
        return Models(transformer, encoder, vaes, facts, tuple(self._warnings))

    def vaes(self) -> Vaes:
        (video, audio), facts = self._load_all(self._vae_parts())
        assert isinstance(video, VideoVae) and isinstance(audio, AudioVae)
        return Vaes(video, audio, facts)

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
            components.transformer(self.paths.transformer, self.settings, compute_dtype, FL2VA),
            components.text_encoder(self.paths.text_encoder),
            *self._vae_parts(),
        )

    def _vae_parts(self) -> tuple[Part, Part]:
        video = components.video_vae(self.paths.video_vae, self.settings)
        return video, components.audio_vae(self.paths.audio_vae)

    def _load_all(self, parts: Sequence[Part]) -> tuple[list[nn.Module], tuple[ComponentFacts, ...]]:
        meter = LoadMeter(require_loadable(parts, self._verification), self._on_progress)
        loaded = [self._load(part, meter) for part in parts]
        return [module for module, _ in loaded], tuple(facts for _, facts in loaded)

    def _verification(self, file: CheckpointFile) -> Verification:
        full = self.settings.verify == "full"
        return Verification(file.parts, full=full, cache_dir=default_cache_dir(), made_up=file.synthetic)

    def _load(self, part: Part, meter: LoadMeter) -> tuple[nn.Module, ComponentFacts]:
        meter.begin(part.component)
        with part.open() as file:
            module = part.on_meta(file)
            verification = self._verification(file)
            reading = Reading(verification.unknown, verification.found, meter.at)
            report = load_module(module, file, linear=self.linear, device=self.device, rule=part.rule, reading=reading)
            verified = verification.finish()
        module.eval().requires_grad_(False)
        facts = _facts(part, file, report, verified)
        self._warnings += facts.warnings
        self._on_component(facts)
        return module, facts


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
    )


def require_matching(transformer: Dit, encoder: TextEncoder, vaes: Vaes, paths: ModelPaths) -> None:
    """CheckpointError listing every pair of files whose widths don't meet."""
    config = transformer.config
    pairs = [
        (paths.text_encoder, "hidden size", encoder.config.hidden, config.text_dim),
        (paths.video_vae, "latent channels", vaes.video.config.latent_channels, config.channels),
        (paths.audio_vae, "latent channels", vaes.audio.config.latent_channels, config.audio_channels),
    ]
    offences = [
        Offence(path.name, f"{what} {has}, but {paths.transformer.name} wants {wants}", str(wants))
        for path, what, has, wants in pairs
        if has != wants
    ]
    if offences:
        raise CheckpointError("; ".join(f"{o.field}: {o.message}" for o in offences), offences)

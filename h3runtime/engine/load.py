"""Checkpoint files -> finished models on one device, each byte read once and known to be the right one.

The models say what they need, `checkpoint` checks and fills them; what is left to do here is the order, the figures and
the questions that need two files at once (does this encoder feed that transformer?). Read by `resident`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.families import Component, require_component
from h3runtime.checkpoint.file import CONFIG_KEY, CheckpointFile, checkpoint_error
from h3runtime.checkpoint.hashing import sha256_of_parts
from h3runtime.checkpoint.load import LoadReport, judge, load_module
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.checkpoint.stream import Reading
from h3runtime.checkpoint.verify import Verification, Verified
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.core import ComponentFacts, OnProgress
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.load_meter import LoadMeter
from h3runtime.engine.paths import ModelPaths
from h3runtime.errors import CheckpointError, Offence
from h3runtime.settings import Settings, default_cache_dir
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_vae import VideoVae

FL2VA = "fl2va"
"""The partition that serves all four tasks of this version (conditioning contract §3)."""
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


Builder = Callable[[CheckpointFile], nn.Module]


@dataclass(frozen=True, slots=True)
class _Part:
    """A file, what it should be, and the model that it fills."""

    component: Component
    path: Path
    build: Builder
    rule: LoadRule

    def on_meta(self, file: CheckpointFile) -> nn.Module:
        """The model without weights. CheckpointError, naming the file, if the file can't be one."""
        require_component(file, self.component)
        try:
            with torch.device("meta"):
                return self.build(file)
        except CheckpointError as error:
            if self.path.name in error.message:
                raise
            raise CheckpointError(f"{self.path.name}: {error.message}", error.offences) from None


OpenVerification = Callable[[CheckpointFile], Verification]


def require_loadable(parts: Sequence[_Part], verification: OpenVerification) -> dict[str, int]:
    """Every header against its model, and every remembered digest, before any data is read, and all faults of all files
    at once: with real weights the last file is minutes away. Returns the files' bytes by component."""
    faults: list[CheckpointError] = []
    sizes: dict[str, int] = {}
    for part in parts:
        try:
            with CheckpointFile(part.path) as file:
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
        paths = self.paths
        parts = (
            _Part(
                "transformer",
                paths.transformer,
                lambda f: Dit(DitConfig.from_shapes(f.shapes), dtype=compute_dtype),
                rules.TRANSFORMER,
            ),
            _Part("text_encoder", paths.text_encoder, _text_encoder, rules.TEXT_ENCODER),
            *self._vae_parts(),
        )
        (transformer, encoder, video, audio), facts = self._load_all(parts)
        assert isinstance(transformer, Dit) and isinstance(encoder, TextEncoder)
        assert isinstance(video, VideoVae) and isinstance(audio, AudioVae)
        vaes = Vaes(video, audio, facts[2:])
        require_matching(transformer, encoder, vaes, paths)
        return Models(transformer, encoder, vaes, facts, tuple(self._warnings))

    def vaes(self) -> Vaes:
        (video, audio), facts = self._load_all(self._vae_parts())
        assert isinstance(video, VideoVae) and isinstance(audio, AudioVae)
        return Vaes(video, audio, facts)

    def _vae_parts(self) -> tuple[_Part, _Part]:
        dtype = rules.vae_dtype(self.settings.vae_dtype)
        tiling = Tiling.of_size(self.settings.vae_tile_size)

        def build_video(file: CheckpointFile) -> nn.Module:
            return VideoVae(VideoVaeConfig.from_shapes(file.shapes, _overrides(file)), dtype, tiling)

        return (
            _Part("video_vae", self.paths.video_vae, build_video, rules.video_vae(dtype)),
            _Part("audio_vae", self.paths.audio_vae, _audio_vae, rules.AUDIO_VAE),
        )

    def _load_all(self, parts: Sequence[_Part]) -> tuple[list[nn.Module], tuple[ComponentFacts, ...]]:
        meter = LoadMeter(require_loadable(parts, self._verification), self._on_progress)
        loaded = [self._load(part, meter) for part in parts]
        return [module for module, _ in loaded], tuple(facts for _, facts in loaded)

    def _verification(self, file: CheckpointFile) -> Verification:
        return Verification(file.parts, full=self.settings.verify == "full", cache_dir=default_cache_dir())

    def _load(self, part: _Part, meter: LoadMeter) -> tuple[nn.Module, ComponentFacts]:
        meter.begin(part.component)
        with CheckpointFile(part.path) as file:
            module = part.on_meta(file)
            verification = self._verification(file)
            reading = Reading(verification.unknown, verification.found, meter.at)
            report = load_module(module, file, linear=self.linear, device=self.device, rule=part.rule, reading=reading)
            verified = verification.finish()
        module.eval().requires_grad_(False)
        self._warnings += (*file.warnings, *verified.warnings)
        facts = _facts(part, report, verified)
        self._on_component(facts)
        return module, facts


def _facts(part: _Part, report: LoadReport, verified: Verified) -> ComponentFacts:
    return ComponentFacts(
        component=part.component,
        file=part.path.name,
        sha256=verified.sha256,
        format=report.format,
        bytes=report.bytes,
        load_seconds=report.seconds,
        synthetic=report.synthetic,
        partition=FL2VA if part.component == "transformer" else None,
        bytes_per_second=report.bytes / max(report.seconds, 1e-9),
    )


def _overrides(file: CheckpointFile) -> Mapping[str, object]:
    """What the file's metadata says that its shapes can't; CheckpointError if that isn't a JSON object."""
    text = file.metadata.get(CONFIG_KEY, "{}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{file.path.name}: its {CONFIG_KEY} is no JSON object", [Offence(CONFIG_KEY, "is no JSON object")]
        )
    return found


def _text_encoder(file: CheckpointFile) -> nn.Module:
    return TextEncoder(TextEncoderConfig.from_shapes(file.shapes, _overrides(file)))


def _audio_vae(file: CheckpointFile) -> nn.Module:
    return AudioVae(AudioVaeConfig.from_shapes(file.shapes))


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

"""Which checkpoints a plan is of: the files that settings name, or published ones, which need not exist.

Read by `planning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.select import vae_linear_backends
from h3runtime.backends.select import AUTO
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.published_files import file_name
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.synthetic.published import SETS, VIDEO_VAE_INT8, SetFormat, encoder_name
from h3runtime.checkpoint.synthetic.synthesis import Order, plan
from h3runtime.checkpoint.synthetic.unmade import UnmadeCheckpoint
from h3runtime.engine import components
from h3runtime.engine.components import Part
from h3runtime.engine.paths import COMPONENTS, model_paths
from h3runtime.errors import InvalidRequest, Offence
from h3runtime.settings import Settings

VIDEO_VAES: Final = ("fp16", "int8_convrot")
ENCODERS: Final = {stored.encoder_name: stored.encoder for stored in SETS.values()}


@dataclass(frozen=True, slots=True)
class UnmadePart(Part):
    """A part whose file is its header alone, made once."""

    file: CheckpointFile | None = None

    def open(self) -> CheckpointFile:
        assert self.file is not None
        return self.file


def vae_linear_of(settings: Settings) -> LinearBackend[Any]:
    """Of the video decoder's blocks; InvalidRequest lists the legal names if there is none such. Whether it can run is
    the machine's word."""
    if settings.vae_linear == AUTO:
        return DequantLinear()
    found = {backend.name: backend for backend in vae_linear_backends()}
    if settings.vae_linear not in found:
        told = f"no backend {settings.vae_linear!r}"
        raise InvalidRequest(f"vae_linear: there is {told}", [Offence("vae_linear", told, ", ".join([AUTO, *found]))])
    return found[settings.vae_linear]


def names_files(settings: Settings) -> bool:
    """Whether any checkpoint is named."""
    return any(getattr(settings, field) is not None for field in COMPONENTS)


def named_parts(settings: Settings, compute_dtype: torch.dtype, vae_linear: LinearBackend[Any]) -> tuple[Part, ...]:
    """Of the files that the settings name, as a server would load them."""
    paths = model_paths(settings)
    return (
        *(components.transformer(path, settings, compute_dtype, p) for p, path in paths.transformers.items()),
        components.text_encoder(paths.text_encoder),
        components.video_vae(paths.video_vae, settings, vae_linear),
        components.audio_vae(paths.audio_vae),
    )


def published_parts(
    kind: SetFormat,
    partitions: Sequence[str],
    settings: Settings,
    compute_dtype: torch.dtype,
    vae_linear: LinearBackend[Any],
    *,
    pruned: bool = True,
    encoder_form: str | None = None,
    video_vae: str = "fp16",
) -> tuple[Part, ...]:
    """Of a published set. partitions: its transformers. encoder_form: one of `ENCODERS`, the set's own if None.
    video_vae: one of `VIDEO_VAES`."""
    *transformers, encoder, video, audio = plan(Order(kind, pruned, full_size=True, partitions=tuple(partitions)))
    if encoder_form is not None:
        storage = ENCODERS[encoder_form]
        encoder = MadeFile(encoder_name(encoder_form), encoder.shapes, encoder.recipe, storage, encoder.extra)
    if video_vae != VIDEO_VAES[0]:
        video = MadeFile(file_name("video_vae", video_vae), video.shapes, video.recipe, VIDEO_VAE_INT8, video.extra)
    parts = [
        *(
            (components.transformer(Path(made.name), settings, compute_dtype, partition), made)
            for partition, made in zip(partitions, transformers, strict=True)
        ),
        (components.text_encoder(Path(encoder.name)), encoder),
        (components.video_vae(Path(video.name), settings, vae_linear), video),
        (components.audio_vae(Path(audio.name)), audio),
    ]
    return tuple(_unmade(part, made) for part, made in parts)


def _unmade(part: Part, made: MadeFile) -> UnmadePart:
    file = UnmadeCheckpoint(made)
    return UnmadePart(
        part.component, part.path, part.build, part.rule, part.qkv_order, part.partition, part.linear, file
    )

"""The four components of H3: which model each checkpoint fills, and by which rule.

Asked by `load`, which fills them, and by `inspection`, which only judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from h3runtime.backends.attention.sparse import vsa
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.families import Component, require_component
from h3runtime.checkpoint.file import CONFIG_KEY, CheckpointFile
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.partition import FL2VA, REF2VA, contradicts
from h3runtime.checkpoint.qkv_order import QkvSwitch
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.errors import CheckpointError, Offence
from h3runtime.settings import PARTITION_PATHS, Settings, variable
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_vae import VideoVae

Builder = Callable[[CheckpointFile], nn.Module]
NEED: Mapping[str, str] = {FL2VA: "T2VA, I2VA, L2VA and FL2VA need", REF2VA: "Ref2VA needs"}
"""What a partition serves (conditioning contract §3), before its name."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file or folder, what it should be, the model that it fills, and what the operator says of its row order.

    partition: which of the two transformers it has to be; None where that doesn't matter. linear: of its layers that
    follow a choice, where it isn't the transformers'.
    """

    component: Component
    path: Path
    build: Builder
    rule: LoadRule
    qkv_order: QkvSwitch = "auto"
    partition: str | None = None
    linear: LinearBackend[Any] | None = None

    def open(self) -> CheckpointFile:
        return CheckpointFile(self.path, qkv_order=self.qkv_order)

    def on_meta(self, file: CheckpointFile) -> nn.Module:
        """The model without weights. CheckpointError, naming the file, if the file can't be one."""
        require_component(file.path, file.shapes, self.component)
        if self.partition is not None and contradicts(self.path, self.partition):
            raise checkpoint_error(self.path, [_wrong_partition(self.partition)])
        try:
            with torch.device("meta"):
                return self.build(file)
        except CheckpointError as error:
            if self.path.name in error.message:
                raise
            raise CheckpointError(f"{self.path.name}: {error.message}", error.offences) from None


def _wrong_partition(wanted: str) -> Offence:
    """Nothing but its name can tell, so whoever knows better renames it."""
    message = f"is named after the other partition, but {NEED[wanted]} {wanted} in {variable(PARTITION_PATHS[wanted])}"
    return Offence(FILE, message, f"the {wanted} file; rename it if only its name is wrong")


def transformer(path: Path, settings: Settings, compute_dtype: torch.dtype, partition: str | None = None) -> Part:
    def build(file: CheckpointFile) -> nn.Module:
        return Dit(DitConfig.from_shapes(file.shapes), dtype=compute_dtype, mlp_chunks=settings.mlp_chunks)

    rule = rules.TRANSFORMER_GATED if settings.attention == vsa.NAME else rules.TRANSFORMER
    return Part("transformer", path, build, rule, settings.qkv_order, partition)


def text_encoder(path: Path) -> Part:
    def build(file: CheckpointFile) -> nn.Module:
        return TextEncoder(TextEncoderConfig.from_shapes(file.shapes, overrides(file)))

    return Part("text_encoder", path, build, rules.TEXT_ENCODER)


def video_vae(path: Path, settings: Settings, linear: LinearBackend[Any] | None = None) -> Part:
    """linear: of the decoder's blocks; None: as stored."""
    dtype = rules.vae_dtype(settings.vae_dtype)
    tiling = Tiling.of_size(settings.vae_tile_size)

    def build(file: CheckpointFile) -> nn.Module:
        return VideoVae(VideoVaeConfig.from_shapes(file.shapes, overrides(file)), dtype, tiling)

    return Part("video_vae", path, build, rules.video_vae(dtype, switched=linear is not None), linear=linear)


def audio_vae(path: Path) -> Part:
    def build(file: CheckpointFile) -> nn.Module:
        return AudioVae(AudioVaeConfig.from_shapes(file.shapes))

    return Part("audio_vae", path, build, rules.AUDIO_VAE)


def part_of(component: Component, path: Path, settings: Settings, compute_dtype: torch.dtype) -> Part:
    match component:
        case "transformer":
            return transformer(path, settings, compute_dtype)
        case "text_encoder":
            return text_encoder(path)
        case "video_vae":
            return video_vae(path, settings)
        case "audio_vae":
            return audio_vae(path)


def overrides(file: CheckpointFile) -> Mapping[str, object]:
    """What the file's metadata, or its folder's `config.json`, says that its shapes can't; the metadata counts.

    CheckpointError if the metadata isn't a JSON object.
    """
    text = file.metadata.get(CONFIG_KEY, "{}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{file.path.name}: its {CONFIG_KEY} is no JSON object", [Offence(CONFIG_KEY, "is no JSON object")]
        )
    return {**file.overrides, **found}

"""Trained weights as the masters that travel in the package.

    transformer   pruned form: BF16; patch projections, heads, table and `rope.inv_freq` F32 (dit-contract §1.2)
    text encoder  BF16, its table as small as the vocabulary (see `text_master`)
    video VAE, audio VAE   F16, as their own training writes them

Fed with the pieces of the training; read by `checkpoint.embedded`, which derives the published files from them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from h3runtime.denoiser.dit import Dit

TRANSFORMER: Final = "transformer.safetensors"
TEXT_ENCODER: Final = "text_encoder.safetensors"
VIDEO_VAE: Final = "video_vae.safetensors"
AUDIO_VAE: Final = "audio_vae.safetensors"
UPSCALER: Final = "upscaler.safetensors"
FULL_PRECISION: Final = (
    "video_patch_proj.",
    "audio_patch_proj.",
    "final_layer.video_out.",
    "final_layer.audio_out.",
    "rope.inv_freq",
    "adaln_t_table",
)


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def filled(module: ModuleT, path: Path) -> ModuleT:
    """The module with a master's values, in its own dtype; strict."""
    module.load_state_dict(load_file(path))
    return module.eval()


def write_transformer(dit: Dit, path: Path) -> None:
    """The master of the DiT."""
    tensors = {
        name: value.detach().cpu().to(torch.float32 if name.startswith(FULL_PRECISION) else torch.bfloat16).clone()
        for name, value in dit.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)

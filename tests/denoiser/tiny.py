"""A small DiT with random weights in the checkpoint's dtypes, and inputs for it."""

from dataclasses import replace

import numpy as np
import torch

from h3runtime.core import Keyframe, KeyframeShape, PackedLayout, Reference, ReferenceShape
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.packing.layout import pack
from tests.parity.dit_case import build

CONFIG = DitConfig(
    hidden=48,
    layers=2,
    refiner_layers=1,
    heads=2,
    head_dim=32,
    ffn=40,
    channels=6,
    audio_channels=8,
    text_dim=24,
    time_dim=20,
    rope_freqs=4,
    sinusoid=16,
    time_hidden=24,
)
CURVE = replace(CONFIG, time_dim=5, sinusoid=None, time_hidden=None, curve_grid=33)
ISLANDS = ("patch_proj", "time_embedder", "adaln_t_table", "_out.", "rope")
"""Stored fp32; the rest bf16 (dit-contract §1.2)."""


def weights(config: DitConfig = CONFIG, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random values, scaled so that activations stay near 1; norms near 1."""
    source = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Dit(config).state_dict().items()}
    return {name: _stored(name, _values(name, shape, source)) for name, shape in shapes.items()}


def _values(name: str, shape: torch.Size, source: torch.Generator) -> torch.Tensor:
    if name == "rope.inv_freq":
        return 10_000.0 ** (-torch.arange(shape[0]) / shape[0])
    noise = torch.randn(shape, generator=source)
    if "norm" in name:
        return 1 + 0.1 * noise
    return noise / (shape[-1] ** 0.5 if len(shape) == 2 and name != "adaln_t_table" else 4)


def _stored(name: str, values: torch.Tensor) -> torch.Tensor:
    return values if any(part in name for part in ISLANDS) else values.bfloat16()


def dit(config: DitConfig = CONFIG, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Dit:
    return build(weights(config, seed), dtype, config)


def layout(
    height: int = 4, width: int = 6, frames: int = 2, keyframes: int = 2, references: int = 1, text: int = 9
) -> PackedLayout:
    """Text with a vision span, `keyframes` still guides, `references` pictures of 4x4, 5 audio latents."""
    tags = np.ones(text, dtype=np.int64)
    tags[2:5] = 0
    return pack(
        frames,
        height,
        width,
        5,
        tags,
        [KeyframeShape(4 * i, 1) for i in range(keyframes)],
        [ReferenceShape("image", 1, 4, 4)] * references,
    )


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def conditions(packed: PackedLayout, config: DitConfig = CONFIG) -> tuple[list[Keyframe], list[Reference]]:
    """Latents for what `layout` holds."""
    sources = {kind: {s.source for s in packed.segments if s.kind == kind} for kind in ("cond", "ref_img")}
    grid = (packed.height, packed.width)
    keyframes = [Keyframe(4 * i, noise(1, config.channels, 1, *grid, seed=10 + i)) for i in sources["cond"]]
    references = [Reference("image", noise(1, config.channels, 1, 4, 4, seed=20 + i)) for i in sources["ref_img"]]
    return keyframes, references


def prepare(model: Dit, packed: PackedLayout, sigmas=None, **rest):
    refined = model.refine(noise(1, packed.text_rows, model.config.text_dim, seed=2))
    return model.prepare(packed, refined, *conditions(packed, model.config), 7, sigmas, **rest)


def latents(packed: PackedLayout, config: DitConfig = CONFIG) -> tuple[torch.Tensor, torch.Tensor]:
    video = noise(1, config.channels, packed.latent_frames, packed.height, packed.width, seed=3)
    return video, noise(1, config.audio_channels, 2, packed.audio_latents, seed=4)

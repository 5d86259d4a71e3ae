"""Builds an `AudioVae` from loose tensors, as the tests need it."""

from __future__ import annotations

from typing import Any

import torch

from h3runtime.backends.linear.dequant import install_plain
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_filters import kaiser_sinc_taps
from h3runtime.vae.audio_vae import AudioVae


def load_audio_vae(weights: dict[str, torch.Tensor], **known: Any) -> AudioVae:
    """Sizes from the tensors; `known` is what no shape tells (see `AudioVaeConfig.from_shapes`)."""
    vae = on_meta(AudioVaeConfig.from_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()}, **known))
    vae.load_state_dict(weights, strict=True, assign=True)
    install_plain(vae)
    return vae


def on_meta(config: AudioVaeConfig) -> AudioVae:
    with torch.device("meta"):
        return AudioVae(config)


def shapes_of(config: AudioVaeConfig) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in on_meta(config).state_dict().items()}


def random_weights(config: AudioVaeConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights small enough for signals to neither die nor blow up on the way."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes_of(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("filter"):
            weights[name] = kaiser_sinc_taps(shape[2])
        elif name.endswith(("latents_std", "norm.weight", "norm1.weight", "norm2.weight", "norm3.weight")):
            weights[name] = 1 + 0.1 * noise.abs()
        elif name.endswith("alpha") and len(shape) == 3:
            weights[name] = 0.5 + noise.abs()
        elif name.endswith("zero_k_bias"):
            weights[name] = torch.zeros(shape)
        elif len(shape) > 1:
            weights[name] = noise / (noise[0].numel() ** 0.5)
        else:
            weights[name] = 0.1 * noise
    return weights

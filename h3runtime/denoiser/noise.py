"""The random numbers of a request, drawn as ComfyUI draws them.

Draws the target's noise and the little noise inside conditions, always from a CPU generator in fp32, so that a seed
means the same clip on every device; moves nothing to a device by itself except to join what it was given. Fed by the
request's seed; read by the denoising loop (targets, re-injection) and the DiT (condition rows).

    target:     one generator at `seed`: video [1, C, T, h, w], then audio [1, 32, 2, A] from where it stopped
    conditions: level * row + (1 - level) * noise, a new generator for each condition, noise in row shape (dit-contract
                §5.3). All conditions of a request therefore share their leading noise values: intended.

Only seed mod 2^32 counts: that is how the CPU's Mersenne twister takes a seed.
"""

from __future__ import annotations

from typing import Final

import torch

from h3runtime.core import Latents
from h3runtime.denoiser.schedule import AUDIO_LEVEL, VISUAL_LEVEL

SEEDS: Final = 2**64
"""Seeds are 0 .. 2^64 - 1 (service-contract, `seed`)."""
VIDEO_CHANNELS: Final = 24
AUDIO_CHANNELS: Final = 32


def generator(seed: int) -> torch.Generator:
    """A CPU generator at `seed`, taken mod 2^64."""
    return torch.Generator().manual_seed(seed % SEEDS)


def target_noise(
    seed: int,
    latent_frames: int,
    height: int,
    width: int,
    audio_latents: int,
    *,
    channels: int = VIDEO_CHANNELS,
    audio_channels: int = AUDIO_CHANNELS,
) -> Latents:
    """Noise for a target of latent grid T, h, w and A audio latents; fp32 on the CPU."""
    source = generator(seed)
    video = torch.randn(1, channels, latent_frames, height, width, generator=source)
    audio = torch.randn(1, audio_channels, 2, audio_latents, generator=source)
    return Latents(video=video, audio=audio)


def noised_rows(rows: torch.Tensor, seed: int, level: float) -> torch.Tensor:
    """One condition's rows, fp32 [n, c], held at timestep `level`; unchanged at 1. Same device."""
    if level >= 1.0:
        return rows
    noise = torch.randn(rows.shape, generator=generator(seed)).to(rows.device)
    return level * rows + (1.0 - level) * noise


def visual_condition_rows(rows: torch.Tensor, seed: int, level: float = VISUAL_LEVEL) -> torch.Tensor:
    """A keyframe's or reference's video rows, fp32 [n, 4C] (patchified, dit-contract §2.2), as the DiT reads them."""
    return noised_rows(rows, seed, level)


def audio_condition_rows(rows: torch.Tensor, seed: int, level: float = AUDIO_LEVEL) -> torch.Tensor:
    """A guide's or reference's audio rows, fp32 [n, 32]; clean unless `level` is overridden, then from seed + 1."""
    return noised_rows(rows, seed + 1, level)

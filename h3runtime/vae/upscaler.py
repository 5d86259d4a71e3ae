"""The latent upscaler: video latents to more rows and columns, without pixels in between (dit-contract §9).

    [B, C, T, h, w] -> conv_in -> inner blocks -> resize (rows, columns) -> outer blocks -> norm, SiLU, conv_out
                                                                                                  -> [B, C, T, h', w']

Residual blocks are told the scale, as an embedding of scale - 1 that scales and shifts their second norm. Temporal
blocks look two latents back and ahead. Clips longer than `CHUNK` latents run in chunks that see `kernel // 2` latents
of their neighbours; the norms then count each chunk by itself, which is part of the published result.

Does: the network (`LatentUpscaler`, parameters named as in the published file), and `upscale`: what its node does
around it, size and normalisation. Does not: choose when to upscale, sample again at the new size, or touch sound.
Fed by: the engine. Read by: the engine and `nano.training.upscaler`.

Memory: 512 channels at the new size, times the three tensors that a residual block holds.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.errors import InvalidRequest, Offence
from h3runtime.vae.upscaler_config import Kind, UpscalerConfig

CHUNK: Final = 16
"""Latents in time that run together (dit-contract §9)."""
CELL: Final = 16
"""Pixels of one latent, in height and width."""
ALIGNMENT: Final = 32
"""Pixels: new sizes are multiples of it (dit-contract §9)."""


class ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))) * (1 + a) + b)), a and b from the embedding; [B, C, T, h, w]."""

    def __init__(self, config: UpscalerConfig) -> None:
        super().__init__()
        channels = config.channels
        self.in_layers = nn.Sequential(
            nn.GroupNorm(config.groups, channels), nn.SiLU(), nn.Conv3d(channels, channels, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(config.embedding, 2 * channels))
        self.out_norm = nn.GroupNorm(config.groups, channels)
        # The published model drops out between the two in training, which is why the convolution is number 2.
        self.out_layers = nn.Sequential(nn.SiLU(), nn.Identity(), nn.Conv3d(channels, channels, 3, padding=1))

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        scale, shift = self.emb_layers(embedding)[:, :, None, None, None].chunk(2, dim=1)
        inner = self.out_norm(self.in_layers(x)) * (1 + scale) + shift
        out: torch.Tensor = x + self.out_layers(inner)
        return out


class TemporalBlock(nn.Module):
    """x + pointwise(depthwise in time(silu(norm(x)))); [B, C, T, h, w]."""

    def __init__(self, config: UpscalerConfig) -> None:
        super().__init__()
        channels, kernel = config.channels, config.kernel
        self.norm = nn.GroupNorm(config.groups, channels)
        self.dwconv = nn.Conv3d(channels, channels, (kernel, 1, 1), padding=(kernel // 2, 0, 0), groups=channels)
        self.pwconv = nn.Conv3d(channels, channels, 1)

    def forward(self, x: torch.Tensor, _embedding: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.pwconv(self.dwconv(F.silu(self.norm(x))))
        return out


class LatentUpscaler(nn.Module):
    """Works in the dtype of its weights."""

    def __init__(self, config: UpscalerConfig) -> None:
        super().__init__()
        self.config = config
        self.conv_in = nn.Conv3d(config.latent_channels, config.channels, 3, padding=1)
        self.embed = nn.Sequential(
            nn.Linear(1, config.embedding), nn.SiLU(), nn.Linear(config.embedding, config.embedding)
        )
        self.in_blocks = nn.ModuleList(_block(kind, config) for kind in config.inner)
        self.out_blocks = nn.ModuleList(_block(kind, config) for kind in config.outer)
        self.norm_out = nn.GroupNorm(config.groups, config.channels)
        self.conv_out = nn.Conv3d(config.channels, config.latent_channels, 3, padding=1)

    def forward(self, latents: torch.Tensor, size: tuple[int, int], scale: float) -> torch.Tensor:
        """[B, C, T, h, w] in the upscaler's own normalisation -> [B, C, T, *size]; the input where nothing changes.

        scale: what the caller asked for, before rounding to whole latents; only the embedding reads it.
        """
        if tuple(latents.shape[-2:]) == size:
            return latents
        latents = latents.to(self.conv_in.weight.dtype)
        count, overlap = latents.shape[2], self.config.kernel // 2
        if count <= CHUNK:
            return self._together(latents, size, scale)
        parts = []
        for start in range(0, count, CHUNK):
            first, last = max(0, start - overlap), min(count, start + CHUNK + overlap)
            made = self._together(latents[:, :, first:last], size, scale)
            parts.append(made[:, :, start - first : start - first + CHUNK])
        return torch.cat(parts, dim=2)

    def _together(self, latents: torch.Tensor, size: tuple[int, int], scale: float) -> torch.Tensor:
        embedding = self.embed(latents.new_full((1, 1), scale - 1)).expand(len(latents), -1)
        x = self.conv_in(latents)
        for block in self.in_blocks:
            x = block(x, embedding)
        x = F.interpolate(x, size=(x.shape[2], *size), mode="trilinear", align_corners=False)
        for block in self.out_blocks:
            x = block(x, embedding)
        out: torch.Tensor = self.conv_out(F.silu(self.norm_out(x)))
        return out


def _block(kind: Kind, config: UpscalerConfig) -> nn.Module:
    return ResidualBlock(config) if kind == "residual" else TemporalBlock(config)


def upscaled_size(h: int, w: int, scale: float) -> tuple[int, int]:
    """Latent rows and columns at `scale`: pixels rounded, halves to even, to whole multiples of `ALIGNMENT`.

    InvalidRequest if scale is below 1 or nothing is left to round to.
    """
    if not scale >= 1:
        raise InvalidRequest(
            f"an upscaler can't make latents smaller: scale {scale}", [Offence("scale", f"is {scale}", "at least 1")]
        )
    rows, columns = (round(side * CELL * scale / ALIGNMENT) * (ALIGNMENT // CELL) for side in (h, w))
    return max(1, rows), max(1, columns)


@torch.no_grad()
def upscale(
    model: LatentUpscaler, latents: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, scale: float
) -> torch.Tensor:
    """Video latents [B, C, T, h, w] as the DiT has them -> [B, C, T, h', w'], same dtype, about `scale` times as large.

    mean, std [C]: the video VAE's. They are applied to latents that are normalised already, a second time, and undone
    afterwards: the published upscaler was trained that way (dit-contract §9). InvalidRequest as `upscaled_size`.
    """
    size = upscaled_size(latents.shape[-2], latents.shape[-1], scale)
    mean, std = (s.to(latents.device, torch.float32).view(-1, 1, 1, 1) for s in (mean, std))
    made: torch.Tensor = model((latents.float() - mean) / std, size, scale)
    return (made.float() * std + mean).to(latents.dtype)

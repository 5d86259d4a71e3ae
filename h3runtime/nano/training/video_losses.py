"""What the video VAE is trained on: pixels it has to give back, and how its latents should lie.

Pixels are compared ImageNet-normalised, [B, F, H, W, 3] wanted against [B, 3, 28 or 4, H, W] decoded, in the frames
that are kept of a decoded piece (conditioning contract §4.7).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.vae.chunks import PART_A, PART_B


@dataclass(frozen=True, slots=True)
class LossWeights:
    """edges: absolute error of differences between neighbouring pixels. latents: mean square of the latents."""

    square: float = 1.0
    absolute: float = 0.5
    edges: float = 0.5
    latents: float = 1e-3


def kept(decoded: torch.Tensor) -> torch.Tensor:
    """[B, 3, 28, H, W] -> the 22 frames that a clip of one piece has; [B, 3, 4, H, W] -> the picture."""
    if decoded.shape[2] == 4:
        return decoded[:, :, -1:]
    return torch.cat([decoded[:, :, PART_A], decoded[:, :, PART_B]], 2)


def reconstruction(
    decoded: torch.Tensor, wanted: torch.Tensor, weights: LossWeights
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the mean square error in normalised units; fp32 scalars."""
    error = kept(decoded).float() - wanted.permute(0, 4, 1, 2, 3)
    square = error.square().mean()
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return weights.square * square + weights.absolute * error.abs().mean() + weights.edges * edges, square


def decibels(square: torch.Tensor | float) -> torch.Tensor:
    """PSNR over [0, 1] of a mean square error in ImageNet-normalised units (their std is about 0.226)."""
    return -10 * torch.log10(torch.as_tensor(square) * 0.226**2)

"""Principal components of what one latent of the video VAE stands for: 4 frames of 16 x 16 pixels.

    patches    pixels -> the patch of every latent, as the decoder lays it out
    basis_of   patches -> their mean and strongest components
    Basis      pixels -> whitened coefficients, which are a good first code

The first latent of each encoder piece sees one frame and is decoded to four of which the last is kept (conditioning
contract §4.7); its patch is that frame four times. Fed by `video_vae` with views of the world, read by `video_start`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from h3runtime.nano.training.video_encoding import pieces_of
from h3runtime.vae.video_config import PATCH

LEAST = 0.01
"""Of a component's deviation, against the strongest's: where few patches were seen, the rest have none."""


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """mean [P]; components [P, K], orthonormal, the strongest first; spread [K]: their deviations. P = 3 * 4 * 256."""

    mean: torch.Tensor
    components: torch.Tensor
    spread: torch.Tensor

    def code(self, pixels: torch.Tensor, count: int) -> torch.Tensor:
        """The first `count` coefficients over their deviations, [B, C, T, h, w], of normalised [B, F, H, W, 3]."""
        found = (patches(pixels) - self.mean) @ (self.components[:, :count] / self.spread[:count])
        return found.permute(0, 4, 1, 2, 3)


def patches(pixels: torch.Tensor) -> torch.Tensor:
    """[B, F, H, W, 3], frames filling their pieces -> [B, T, H/16, W/16, P], P in the order of `unpatchify`."""
    frames = torch.cat([_repeated(piece) for piece in torch.split(pixels, list(pieces_of(pixels.shape[1])), 1)], 1)
    (batch, _, height, width, _), (deep, high, wide) = frames.shape, PATCH
    cut = frames.reshape(batch, -1, deep, height // high, high, width // wide, wide, 3)
    return cut.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(4)


def basis_of(seen: Sequence[torch.Tensor], count: int) -> Basis:
    """The `count` strongest components of normalised clips, each [B, F, H, W, 3], on their device."""
    rows = torch.cat([patches(pixels).flatten(0, 3) for pixels in seen])
    mean = rows.mean(0)
    rows = (rows - mean) / math.sqrt(len(rows))
    few = len(rows) < rows.shape[1]
    values, vectors = torch.linalg.eigh(rows @ rows.mT if few else rows.mT @ rows)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    spread = values.clamp_min(LEAST**2 * float(values[0])).sqrt()
    missing = count - len(spread)
    components = F.pad(rows.mT @ (vectors / spread) if few else vectors, (0, missing))
    return Basis(mean, components, F.pad(spread, (0, missing), value=float(spread[-1])))


def _repeated(piece: torch.Tensor) -> torch.Tensor:
    """Its first frame `PATCH[0]` times, then the rest."""
    return torch.cat([piece[:, :1].expand(-1, PATCH[0] - 1, -1, -1, -1), piece], 1)

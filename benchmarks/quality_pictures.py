"""A clip's frames on the device that made them: how alike two clips are, and what the judge looks at, without copies.

    clip_ssim     as `h3runtime.quality.distances` and `media.similarity` define it, in float64: the 11x11 window is a
                  product with a banded matrix on each side, so that a clip takes a few launches and no pass on the host
    mean_square   of all 8-bit values of two clips, as whole numbers: no rounding before the last division
    working       the pictures that `nano.blobs` reduces frames to, the same bits

A clip of 124 frames at 640x384 costs a core of the host 3.5 s of these three, and the judge a tenth of that afterwards.
On a CPU the definitions themselves are asked: they are faster there. Frames are uint8 [F, H, W, 3]. Fed by
`quality_measures`.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import torch

from h3runtime.media.checks import LUMA
from h3runtime.media.similarity import C1, C2, MARGIN, SIGMA, WINDOW
from h3runtime.nano.blobs import WORKING_SIDE, Pixels, reduced
from h3runtime.quality import distances

AT_ONCE: Final = 14
"""Frames: 14 of 640x384 take 0.3 GB in float64 with all maps."""


def clip_ssim(exact: torch.Tensor, made: torch.Tensor) -> float:
    """Two clips of one size -> mean over every third frame."""
    if exact.device.type == "cpu":
        return distances.clip_ssim(exact.numpy(), made.numpy())
    return banded_ssim(exact[:: distances.FRAMES_APART], made[:: distances.FRAMES_APART])


def banded_ssim(a: torch.Tensor, b: torch.Tensor) -> float:
    """Mean over all frames, on their device."""
    down, across = _band(a.shape[1], a.device), _band(a.shape[2], a.device)
    total = a.new_zeros((), dtype=torch.float64)
    for x, y in zip(_luma(a), _luma(b), strict=True):
        maps = torch.stack([x, y, x * y, x * x + y * y])
        mean_x, mean_y, both, squares = (down @ maps @ across.T).unbind()
        product, means = mean_x * mean_y, mean_x * mean_x + mean_y * mean_y
        alike = (2 * product + C1) * (2 * (both - product) + C2) / ((means + C1) * (squares - means + C2))
        total += alike.mean((1, 2)).sum()
    return float(total) / len(a)


def mean_square(a: torch.Tensor, b: torch.Tensor) -> float:
    """In 8-bit levels, over all values."""
    pairs = zip(torch.split(a, AT_ONCE), torch.split(b, AT_ONCE), strict=True)
    total = a.new_zeros((), dtype=torch.int64)
    for x, y in pairs:
        total += (x.to(torch.int32) - y).square().sum()
    return int(total) / a.numel()


def working(frames: torch.Tensor) -> Pixels:
    """On the host, float32 [F, h, w, 3]."""
    if frames.device.type == "cpu":
        return reduced(frames.numpy())
    pictures: Pixels = reduced_there(frames).cpu().numpy()
    return pictures


def reduced_there(frames: torch.Tensor) -> torch.Tensor:
    """As `reduced`, on their device: sums of bytes are whole numbers, exact in any order."""
    height, width = frames.shape[1:3]
    by = max(1, min(height, width) // WORKING_SIDE)
    cut = frames[:, : height // by * by, : width // by * by]
    parts = cut.reshape(len(cut), height // by, by, width // by, by, 3)
    return parts.sum((2, 4), dtype=torch.float32) / (by * by)


def _luma(frames: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.tensor(LUMA, dtype=torch.float64, device=frames.device)
    return [some.to(torch.float64) @ weights for some in torch.split(frames, AT_ONCE)]


@cache
def _band(side: int, device: torch.device) -> torch.Tensor:
    """float64 [side - 10, side]: row i is the window from place i on."""
    window = np.exp(-0.5 * (np.arange(-MARGIN, MARGIN + 1) / SIGMA) ** 2)
    window /= window.sum()
    band = np.zeros((side - 2 * MARGIN, side))
    for row in range(len(band)):
        band[row, row : row + WINDOW] = window
    return torch.from_numpy(band).to(device)

"""A clip's frames on the device that made them: how alike two clips are, and what the judge looks at, without copies.

    clip_ssim     as `h3runtime.quality.distances` defines it, frame by frame as `calibrate` takes it
    mean_square   of all 8-bit values of two clips, as whole numbers: no rounding before the last division
    working       the pictures that `nano.blobs` reduces frames to, the same bits

A clip of 124 frames at 640x384 costs a core of the host 3.5 s of these three, and the judge a tenth of that afterwards.
On a CPU the definitions themselves are asked: they are faster there. Frames are uint8 [F, H, W, 3]. Fed by
`quality_measures`.
"""

from __future__ import annotations

from typing import Final

import torch

from h3runtime.cli.calibration.similarity import frame_ssims
from h3runtime.nano.blobs import WORKING_SIDE, Pixels, reduced
from h3runtime.quality import distances

AT_ONCE: Final = 14
"""Frames that are compared in one go."""


def clip_ssim(exact: torch.Tensor, made: torch.Tensor) -> float:
    """Two clips of one size -> mean over every third frame."""
    apart = distances.FRAMES_APART
    return float(frame_ssims(exact[::apart], made[::apart]).mean())


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

"""Pixels -> the patch rows that the vision tower reads (conditioning contract §1.9).

    uint8 [1|2, H, W, 3] -> /255 -> bilinear resize -> (x - 0.5) / 0.5 -> [gh*gw, 3*2*16*16]

The resize has half-pixel centres and no antialias, and runs on floats that are never rounded back to 8 bit. Rows are in
merge order: 2x2 squares of patches row by row, and row by row inside a square, so that four rows in a line become one
feature. Always on the CPU, where division and interpolation give the same bits for every device. Fed by `encoder`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from h3runtime.media.vision_size import FRAMES, MERGE, PATCH, smart_resize

PREPROCESSING_VERSION = 1
"""Part of every prompt-cache key: raise it with any change of the values that this module gives."""


def patch_rows(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """uint8 [1|2, H, W, 3] -> fp32 [gh*gw, 1536] on the CPU; a row is (channel, frame, y, x), channel slowest."""
    frames = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float().div_(255)
    size = smart_resize(pixels.shape[1], pixels.shape[2])
    if size != tuple(pixels.shape[1:3]):
        frames = F.interpolate(frames, size=size, mode="bilinear", align_corners=False, antialias=False)
    frames = (frames - 0.5) / 0.5
    return _in_merge_order(frames.expand(FRAMES, -1, -1, -1))


def _in_merge_order(frames: torch.Tensor) -> torch.Tensor:
    """[2, C, H, W] -> [gh*gw, C*2*16*16]."""
    count, channels, height, width = frames.shape
    squares_y, squares_x = height // (PATCH * MERGE), width // (PATCH * MERGE)
    split = frames.reshape(count, channels, squares_y, MERGE, PATCH, squares_x, MERGE, PATCH)
    ordered = split.permute(2, 5, 3, 6, 1, 0, 4, 7)
    return ordered.reshape(squares_y * squares_x * MERGE**2, channels * count * PATCH * PATCH)

"""Where presentation rows sit on Qwen3-VL's three rotary axes, and the angles this gives (conditioning contract §1.8).

Interleaved MRoPE. Of the D/2 frequencies of a head, index 0, 3, 6, .. turn with the T position, 1, 4, 7, .. with H and
2, 5, 8, .. with W, the latter two up to three times their section; all above turn with T. Fed by `encoder` (rows and
grids); read by `language_model`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.media.vision_size import MERGE, Grid

Rotary = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, fp32 [rows, D/2]; pair (i, i + D/2) of a head turns by angle i."""


def position_ids(rows: int, blocks: Iterable[tuple[int, Grid]]) -> NDArray[np.int64]:
    """int64 [3, L] (T, H, W). `blocks`: first feature row and patch grid of each vision block, in row order."""
    out = np.empty((3, rows), dtype=np.int64)
    row = position = 0
    for start, grid in blocks:
        out[:, row:start] = position + np.arange(start - row)
        position += start - row
        height, width = grid[0] // MERGE, grid[1] // MERGE
        row = start + height * width
        out[0, start:row] = position
        out[1, start:row] = position + np.repeat(np.arange(height), width)
        out[2, start:row] = position + np.tile(np.arange(width), height)
        position += max(height, width)
    out[:, row:] = position + np.arange(rows - row)
    return out


def rotary_angles(positions: NDArray[np.int64], head_dim: int, theta: float, section: tuple[int, int, int]) -> Rotary:
    """positions [3, L] -> cos, sin fp32 [L, head_dim/2], on the CPU. `section`: frequencies of T, H and W."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    t, h, w = torch.from_numpy(positions).float().unsqueeze(-1) * frequencies
    angles = t.clone()
    for offset, axis in ((1, h), (2, w)):
        chosen = slice(offset, 3 * section[offset], 3)
        angles[:, chosen] = axis[:, chosen]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """x [B, L, H, D] turned by cos, sin [L, D/2], halves paired (rotate-half)."""
    cos, sin = (angle.unsqueeze(-2) for angle in rotary)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

"""Rotary positions of the packed sequence.

Turns position ids into cos and sin tables, once per request. Does not make positions (`packing` does) and rotates
nothing (`backends.fused` does). Fed by `Dit.prepare`; read by the blocks' attention.

    angle[s, axis*n + k] = float32(position[s, axis]) * inv_freq[k]        axis t, h, w; n frequencies, shared
    out[j]       = cos[j] x[j]       - sin[j] x[j + 3n]                    j < 3n
    out[j + 3n]  = sin[j] x[j]       + cos[j] x[j + 3n]
    out[6n:]     = x[6n:]                                                  96 of 128 dims turn in the real model

Angles, cos and sin are fp32; the tables are then rounded to the compute dtype and every product and sum rounds in that
dtype (dit-contract §3.1).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


class Rope(nn.Module):
    """Holds `rope.inv_freq`, fp32 [n], of the checkpoint."""

    inv_freq: torch.Tensor

    def __init__(self, freqs: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.empty(freqs, dtype=torch.float32))

    def forward(self, position_ids: NDArray[np.float64], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """position ids float64 [S, 3] -> cos, sin [S, 3n] in `dtype` on the device of the frequencies."""
        positions = torch.from_numpy(position_ids.astype(np.float32)).to(self.inv_freq.device)
        angles = (positions.unsqueeze(-1) * self.inv_freq.float()).flatten(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

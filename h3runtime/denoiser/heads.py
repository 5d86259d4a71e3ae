"""The final layer and the output heads, ordinary or stacked.

Norms and modulates the target's rows, then reads velocities off them in fp32. Does not undo patches or change signs
(`Dit` does). Fed by `Dit` with the last block's output (dit-contract §4.6).

    y = norm(h)*(1 + scale) + shift      in the wider of h's and the table's dtypes, then fp32
    video_out [C*4, hidden] or audio_out [C, hidden], fp32

A model distilled for few steps may stack N heads along the output rows: head 0 is whole, heads 1.. are offsets from it,
and a step from sigma to the next sigma reads a weighted mean of the heads its stretch of the base covers (§4.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.fused.base import Producers
from h3runtime.backends.fused.definition import DEFINITION, modulate_
from h3runtime.denoiser.blocks import RmsNorm
from h3runtime.denoiser.config import FINAL_VECTORS, DitConfig
from h3runtime.denoiser.modulation import AdaLn
from h3runtime.denoiser.schedule import shift_base, unshift
from h3runtime.denoiser.timeline import RowMap


@dataclass(frozen=True, slots=True)
class Window:
    """Heads [start, stop) of a bank and their weights, which sum to 1."""

    start: int
    stop: int
    weights: tuple[float, ...]


def window(bank: int, sigma: float, sigma_next: float, shift: float, stream_shift: float) -> Window:
    """Heads that the step sigma -> sigma_next covers, for the stream with `stream_shift` (dit-contract §4.7).

    `sigma`, `sigma_next`, `shift` are the video's: both streams cover the same heads, since they share the base; only
    the weights follow the stream's own shift. Weights are lengths of 1 - S_s(b) between the bank's even marks of b.
    """
    start = min(round(bank * (1.0 - unshift(sigma, shift))), bank - 1)
    stop = max(round(bank * (1.0 - unshift(sigma_next, shift))), start + 1)
    marks = [1.0 - shift_base(1.0 - n / bank, stream_shift) for n in range(start, stop + 1)]
    lengths = [after - before for before, after in pairwise(marks)]
    total = sum(lengths)
    return Window(start, stop, tuple(length / total for length in lengths))


def next_sigma(sigmas: Sequence[float], sigma: float) -> float:
    """The entry after the one nearest to `sigma` in a run's schedule (dit-contract §4.7)."""
    nearest = min(range(len(sigmas) - 1), key=lambda i: abs(sigmas[i] - sigma))
    return sigmas[nearest + 1]


class OutputHead(nn.Module):
    """`bank` stacked linears of `rows` outputs, computed in fp32. Parameters, not a linear: no backend may swap it."""

    def __init__(self, hidden: int, rows: int, bank: int) -> None:
        super().__init__()
        self.rows = rows
        self.weight = nn.Parameter(torch.empty(bank * rows, hidden))
        self.bias = nn.Parameter(torch.empty(bank * rows))

    @property
    def bank(self) -> int:
        """Heads of the weight as it is now: an adapter may have put a bank in its place."""
        return self.weight.shape[0] // self.rows

    def forward(self, y: torch.Tensor, heads: Window | None) -> torch.Tensor:
        """y fp32 [n, hidden] -> fp32 [n, rows]; `heads` is needed by a bank only."""
        if heads is None:
            return F.linear(y, self.weight.float(), self.bias.float())
        return F.linear(y, self._mean(self.weight, heads), self._mean(self.bias, heads))

    def _mean(self, stacked: torch.Tensor, heads: Window) -> torch.Tensor:
        """Head 0 and the weighted offsets of the window, fp32 [rows, ...]."""
        each = stacked.float().view(self.bank, -1, *stacked.shape[1:])
        mean = each[0].clone()
        for weight, head in zip(heads.weights, range(heads.start, heads.stop), strict=True):
            if head > 0:
                mean.add_(each[head], alpha=weight)
        return mean


class FinalLayer(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.norm = RmsNorm(config.hidden, config.final_norm_eps)
        self.adaln_proj = AdaLn(config.time_dim, FINAL_VECTORS * config.hidden)
        self.video_out = OutputHead(config.hidden, config.video_row, config.head_bank)
        self.audio_out = OutputHead(config.hidden, config.audio_channels, config.head_bank)

    def forward(
        self, h: torch.Tensor, table: torch.Tensor, rows: RowMap, producers: Producers = DEFINITION
    ) -> torch.Tensor:
        """Target rows h [n, hidden], table [M, 2*hidden] read by `rows` -> what a head reads, fp32 [n, hidden]."""
        shift, scale = table.chunk(FINAL_VECTORS, dim=-1)
        normed = producers.norm(h, self.norm.held).to(torch.promote_types(h.dtype, table.dtype))
        return modulate_(normed, shift, scale, rows).float()

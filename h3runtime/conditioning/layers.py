"""Small layers that the vision tower and the language model share, and the rows that they take at a time.

The encoder computes in fp32 whatever dtype its weights are stored in (conditioning contract §1.7): norms cast their
weights to the activation's dtype per call, as the linear backends do. Knows neither tower nor text.

A presentation may have 30,000 rows. What all rows need at once (the residual stream, keys and values) is kept whole;
everything wider runs in chunks of rows that hold `CHUNK_BYTES` at most, and up to that in one piece.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

FP32 = 4
"""Bytes of a number: the encoder computes in nothing else."""
CHUNK_BYTES = 512 * 2**20
"""What the rows of one chunk may hold at their widest place: about as much as the widest published weight in fp32, 524
MB, which a quantised file's linear makes anew for each chunk. 2176 rows of the published language layers."""
CHUNK_MULTIPLE = 128
"""Chunks of more rows than this are multiples of it, which fills a matmul's tiles."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, weight as it is (not 1 + w)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


def uninitialised_embedding(rows: int, size: int) -> nn.Embedding:
    """A table [rows, size] that a checkpoint fills. Drawing random values for it on the meta device would import
    torch's compiler: seconds of start, hundreds of modules, and a folder in the system's temporary one."""
    return nn.Embedding(rows, size, _weight=torch.empty(rows, size))


def row_chunks(rows: int, row_bytes: int) -> list[slice]:
    """[0, rows) in order, in chunks of which each holds at most `CHUNK_BYTES` if a row holds `row_bytes`.

    As equal in length as can be: a matmul over a handful of rows may add in another order than over many.
    """
    most = max(CHUNK_BYTES // row_bytes, 1)
    multiple = CHUNK_MULTIPLE if most >= CHUNK_MULTIPLE else 1
    most -= most % multiple
    step = -(-rows // -(-rows // most))
    step += -step % multiple
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def chunk_bytes(rows: int, row_bytes: int) -> int:
    """What the longest chunk of `rows` holds."""
    longest: int = max(chunk.stop - chunk.start for chunk in row_chunks(rows, row_bytes))
    return longest * row_bytes

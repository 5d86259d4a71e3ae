"""Attention around 65,536 rows and past 2^31 elements: where an index of 16 or 32 bits turns over.

Two heads of random numbers, so that it takes milliseconds; the answer is right if it is at 64 rows, each held to FP32.
Those are the first and last ones, the ones around every power of two that a tile or an index may end at, and some
between. Every other one of them points at one key (its query is twice that key, which then weighs more than all others
together), the last of all among them: a kernel that leaves out the last tile is wrong there and nowhere else. All of
the result has to be numbers: in NGC's PyTorch 25.10 to 25.12 `scaled_dot_product_attention` gave NaN from 65,536 rows
on (pytorch/pytorch #171389).

On a CPU, where so many rows would take minutes, the same 64 queries read all keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from h3runtime.backends.attention.base import Candidate
from h3runtime.engine.self_test.check import Check, worst_row

FAMILY: Final = "attention"
AROUND: Final = (65_535, 65_536, 65_537)
HEADS: Final = 2
CPU_HEAD_DIM: Final = 64
ASKED: Final = 64
EDGES: Final = (0, 1, 15, 16, 63, 64, 127, 128, 255, 256, 32_767, 32_768, 65_534, 65_535)
POINTING: Final = 2.0
"""Of random numbers of size 1 in heads of 128: the score is 22.6 beside 65,536 of 0 +- 2, whose exponentials sum to
that of 13.1; in heads of 64 16.0 beside 13.1, still 95 %."""
LONG_ELEMENTS: Final = 2**31
MOST_ROWS: Final = 131_072
"""Longer than any clip that is admitted by default: 362 frames of 1344x768 are 108,000 rows."""
SPARE_BYTES: Final = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the loaded transformer: numbers in a row of its fused q, k and v, and in a head."""

    row_elements: int
    head_dim: int

    @property
    def long_rows(self) -> int | None:
        """The fewest rows, and some more, whose fused q, k and v have 2^31 elements; None if no clip has as many."""
        rows = math.ceil(LONG_ELEMENTS / self.row_elements) + 37
        return rows if rows <= MOST_ROWS else None


class Around:
    """q, k and v of the checks around 65,536 rows, made once for all of them: [1, 65,537, 3, heads, head_dim]."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        on_cpu = device.type == "cpu"
        heads, head_dim = (1, min(shape.head_dim, CPU_HEAD_DIM)) if on_cpu else (HEADS, shape.head_dim)
        self._shape, self._device = (1, max(AROUND), 3, heads, head_dim), device
        self._made: torch.Tensor | None = None

    def rows(self, rows: int) -> torch.Tensor:
        if self._made is None:
            source = torch.Generator(self._device).manual_seed(0)
            self._made = torch.randn(self._shape, generator=source, device=self._device).bfloat16()
        return self._made[:, :rows]


def attention_checks(
    backend: Candidate,
    shape: Shape,
    around: Around,
    device: torch.device,
    *,
    free_bytes: int = 0,
    every_query: bool = True,
) -> Iterator[Check]:
    """free_bytes: of the device; the long check, which takes 4.3 GB of them, is left out where there aren't as many.
    every_query: a call has a query for each row, as in the model; else for the 64 that are looked at."""
    for rows in AROUND:
        yield _check(backend, f"{rows} rows", partial(around.rows, rows), every_query)
    long = shape.long_rows
    if every_query and long is not None and free_bytes > 2 * long * shape.row_elements + SPARE_BYTES:
        yield _check(backend, f"{long} rows, 2^31 elements", partial(_last_heads, long, shape, device), every_query)


def _check(backend: Candidate, asked: str, made: Callable[[], torch.Tensor], every_query: bool) -> Check:
    return Check(FAMILY, backend.name, asked, backend.tolerance, lambda: _error(backend, made(), every_query))


def _last_heads(rows: int, shape: Shape, device: torch.device) -> torch.Tensor:
    """The same as a view of what the transformer's projection leaves: its last heads. The rest is memory as it was."""
    whole = torch.empty(rows * shape.row_elements, dtype=torch.bfloat16, device=device)
    heads = whole.view(1, rows, 3, -1, shape.head_dim)[:, :, :, -HEADS:]
    heads.copy_(torch.randn(heads.shape, generator=torch.Generator(device).manual_seed(1), device=device))
    return heads


def _error(backend: Candidate, qkv: torch.Tensor, every_query: bool) -> float:
    q, k, v = qkv.unbind(2)
    rows = asked_rows(q.shape[1])
    pointing = rows[1::2]
    # The last row points at itself.
    q[:, pointing] = POINTING * k[:, pointing.flip(0).roll(1)]
    looked_at = q[:, rows]
    got = backend.call(q if every_query else looked_at, k, v)
    if not bool(torch.isfinite(got).all()):
        return math.nan
    return worst_row(got[0, rows] if every_query else got[0], exact(looked_at, k, v)[0])


def asked_rows(rows: int) -> torch.Tensor:
    """int64 [ASKED], ascending, the last row last and at an odd place."""
    edges = {row for row in (*EDGES, 65_536, rows - 2, rows - 1) if row < rows}
    between = torch.linspace(0, rows - 1, 3 * ASKED).long().tolist()[1:-1:2]
    others = [row for row in between if row not in edges][: ASKED - len(edges)]
    return torch.tensor(sorted(edges | set(others)))


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [1, n, H, D], k, v [1, S, H, D] -> softmax(q k^T / sqrt(D)) v in FP32, [1, n, H, D]."""
    scores = torch.einsum("bnhd,bshd->bhns", q.float(), k.float()) / math.sqrt(q.shape[-1])
    return torch.einsum("bhns,bshd->bnhd", scores.softmax(-1), v.float())

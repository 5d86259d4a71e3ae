"""The packed sequence in an order in which every 64 pictures' rows that follow each other are near each other.

Does no attention and no torch arithmetic. Fed by `sla8_topk` with a `PackedLayout`; read by `h3_kernels.sparse8`, which
sees places of a table and no geometry.

    pictures    the cubes of `tiles`: whole ones first, then those that the grid's ends cut, each kind on its own, so
                that the cut ones fill whole tiles with their neighbours. Within a kind to and fro (w, then h, then T),
                so that what follows is what is near
    tiles       64 rows in that order, of which all keys or none are read; two tiles are 128 queries that choose as one
    exact rows  the rest: all rows ahead of the pictures (`base.exact_rows`), in their own order, and up to 127 rows of
                the pictures that fill no two tiles. Their queries read everything and every query reads their keys

So no tile is ragged but the last of the exact ones: 37 x 24 x 42 rows are 582 full tiles and 48 exact rows, where cubes
on their own would be 660, 120 of them ragged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.backends.attention.base import exact_rows
from h3runtime.backends.attention.sparse.tiles import EDGE, TILE, grid_of
from h3runtime.core import PackedLayout

QUERIES: Final = 2 * TILE
"""Rows whose queries read the same keys."""


@dataclass(frozen=True, slots=True)
class Order:
    """rows int32 [S] on the device: which row of the sequence lies at each place. The first `blocks` * 128 places are
    pictures, the other ones exact."""

    rows: torch.Tensor
    blocks: int

    @property
    def tiles(self) -> int:
        """Of the pictures."""
        return self.blocks * QUERIES // TILE

    @property
    def exact(self) -> int:
        return self.rows.shape[0] - self.blocks * QUERIES


def order(layout: PackedLayout, device: torch.device) -> Order:
    """Of a layout that has a grid (`tiles.why_no_grid`)."""
    first = exact_rows(layout)
    pictures = first + by_cubes(*grid_of(layout))
    blocks = len(pictures) // QUERIES
    chosen, rest = np.split(pictures, [blocks * QUERIES])
    placed = np.concatenate([chosen, np.arange(first, dtype=np.int32), rest]).astype(np.int32)
    return Order(torch.from_numpy(placed).to(device), blocks)


def all_exact(rows: int, device: torch.device) -> Order:
    """Rows that all read everything, as they lie: what a probe calls a kernel with."""
    return Order(torch.arange(rows, dtype=torch.int32, device=device), 0)


def by_cubes(frames: int, height: int, width: int) -> NDArray[np.int32]:
    """The rows of a grid T x h x w, w inner, in the order that the module's docstring gives."""
    sides = frames, height, width
    row = np.indices(sides).reshape(3, -1)
    cube, inside = row // EDGE, row % EDGE
    cut = [at == side // EDGE for at, side in zip(cube, sides, strict=True)]
    t, h, w = cube
    h = np.where(t % 2 == 0, h, -h)
    w = np.where((t + cube[1]) % 2 == 0, w, -w)
    # The last key counts most.
    return np.lexsort((*inside[::-1], w, h, t, *cut)).astype(np.int32)

"""The packed sequence in tiles of at most 64 rows: runs of the segments ahead of the pictures, then cubes of these.

Does no attention and no torch arithmetic. Fed by the sparse backends with a `PackedLayout`; read by `definition` and by
`h3_kernels.sparse`, which see rows of a table and no geometry.

    exact tiles    64 rows in a row, each segment on its own, so that none holds two kinds (dit-contract §9: "prefix
                   segments padded separately to 64")
    cubes          4 x 4 x 4 of the grid (T, h/2, w/2) whose rows are w inner, h, T outer (§2.2, §9); ragged at the
                   grid's ends: 37 x 24 x 42 rows are 10 x 6 x 11 cubes, of which 9 x 6 x 10 are whole

A tile's rows are in the sequence's own order, and the table is filled with -1 behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import PackedLayout, Segment, SegmentKind

EDGE: Final = 4
TILE: Final = EDGE**3
NOBODY: Final = -1
"""Fills the table where a tile has fewer rows."""

Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tiles:
    """rows int32 [N, 64], sizes fp32 [N], owner int64 [S] (the tile of each row), all on the device; the first `exact`
    tiles are rows [0, exact_rows)."""

    rows: torch.Tensor
    sizes: torch.Tensor
    owner: torch.Tensor
    exact: int
    exact_rows: int

    @property
    def cubes(self) -> int:
        return self.rows.shape[0] - self.exact


def why_no_grid(layout: PackedLayout) -> str | None:
    """Why the last segment isn't a grid of pictures, or None if it is."""
    last = layout.segments[-1]
    if last.kind is not SegmentKind.VIDEO:
        return f"its last rows are {last.kind.value}"
    frames, height, width = grid_of(layout)
    if frames * height * width != last.stop - last.start:
        return f"{last.stop - last.start} rows are no grid of {frames}x{height}x{width}"
    return None


def grid_of(layout: PackedLayout) -> tuple[int, int, int]:
    """(T, h/2, w/2) in packed rows."""
    return layout.latent_frames, layout.height // 2, layout.width // 2


def tile(layout: PackedLayout, device: torch.device) -> Tiles:
    """Of a layout that has a grid (`why_no_grid`)."""
    *ahead, last = layout.segments
    runs = [run for segment in ahead for run in _runs(segment)]
    table = np.stack([_padded(rows) for rows in (*runs, *_cubes(last.start, grid_of(layout)))])
    return _on(table, len(runs), last.start, device)


def tile_all(rows: int, device: torch.device) -> Tiles:
    """Of rows that are all exact: what a probe calls a kernel with."""
    runs = [_padded(run) for run in _runs(Segment(SegmentKind.TEXT, 0, rows))]
    return _on(np.stack(runs), len(runs), rows, device)


def kept_cubes(share: float, cubes: int) -> int:
    """How many of `cubes` a query keeps: at least one (dit-contract §9: "keep 10%")."""
    return min(cubes, max(1, math.ceil(share * cubes - 1e-9)))


def _runs(segment: Segment) -> Iterator[Rows]:
    for start in range(segment.start, segment.stop, TILE):
        yield np.arange(start, min(start + TILE, segment.stop), dtype=np.int32)


def _cubes(first: int, grid: Sequence[int]) -> Iterator[Rows]:
    """Of the grid whose first row is `first`; cubes are w inner too."""
    frames, height, width = grid
    rows = np.arange(first, first + frames * height * width, dtype=np.int32).reshape(frames, height, width)
    for t in range(0, frames, EDGE):
        for y in range(0, height, EDGE):
            for x in range(0, width, EDGE):
                yield rows[t : t + EDGE, y : y + EDGE, x : x + EDGE].reshape(-1)


def _padded(rows: Rows) -> Rows:
    return np.pad(rows, (0, TILE - len(rows)), constant_values=NOBODY)


def _on(table: Rows, exact: int, exact_rows: int, device: torch.device) -> Tiles:
    held = table != NOBODY
    owner = np.empty(held.sum(), dtype=np.int64)
    owner[table[held]] = np.nonzero(held)[0]
    sizes = held.sum(1).astype(np.float32)
    rows, filled, owners = (torch.from_numpy(x).to(device) for x in (table, sizes, owner))
    return Tiles(rows, filled, owners, exact, exact_rows)

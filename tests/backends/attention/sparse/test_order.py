"""Every row has one place, the pictures' tiles are near together, and what conditions is never among them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from h3runtime.backends.attention.base import exact_rows
from h3runtime.backends.attention.sparse.order import all_exact, by_cubes, order
from h3runtime.backends.attention.sparse.tiles import TILE, grid_of
from h3runtime.core import PackedLayout
from h3runtime.packing.layout import pack
from tests.backends.attention.sparse.test_tiles import layouts

CPU = torch.device("cpu")


@settings(max_examples=30, deadline=None)
@given(layouts())
def test_every_row_has_one_place(layout: PackedLayout) -> None:
    placed = order(layout, CPU)
    assert placed.rows.dtype == torch.int32
    assert torch.equal(placed.rows.sort().values, torch.arange(layout.rows, dtype=torch.int32))
    assert placed.tiles == 2 * placed.blocks and placed.exact == layout.rows - 128 * placed.blocks


@settings(max_examples=30, deadline=None)
@given(layouts())
def test_what_can_be_left_out_is_pictures_alone(layout: PackedLayout) -> None:
    placed, first = order(layout, CPU), exact_rows(layout)
    pictures = placed.rows[: 128 * placed.blocks]
    assert bool((pictures >= first).all())
    assert placed.exact - first == (layout.rows - first) % 128 < 128
    assert placed.rows[len(pictures) : len(pictures) + first].tolist() == list(range(first))


@pytest.mark.parametrize("grid", [(37, 24, 42), (8, 8, 8), (5, 7, 11), (1, 4, 18)], ids=str)
def test_whole_cubes_are_tiles_and_neighbours_follow_each_other(grid: tuple[int, int, int]) -> None:
    rows = by_cubes(*grid)
    assert sorted(rows.tolist()) == list(range(int(np.prod(grid))))
    at = np.stack(np.unravel_index(rows, grid), 1)
    whole = int(np.prod([side // 4 for side in grid]))
    cubes = at[: whole * TILE].reshape(whole, TILE, 3) // 4
    assert (cubes == cubes[:, :1]).all()
    assert (np.abs(np.diff(cubes[:, 0], axis=0)).sum(1) == 1).all()
    assert (at[whole * TILE :] // 4 == np.array(grid) // 4).any(1).all(), "what is left is cut by an end of the grid"


def test_the_canonical_clip() -> None:
    """1344x768x124: 37 x 24 x 42 rows (dit-contract 2.2); cut tiles reach over 16 rows at most."""
    layout = pack(37, 48, 84, 207, np.ones(100, dtype=np.int64), [], [])
    placed = order(layout, CPU)
    assert (placed.blocks, placed.tiles, placed.exact) == (291, 582, 514 + 48)
    at = np.stack(np.unravel_index(placed.rows[: 582 * TILE].numpy() - 514, grid_of(layout)), 1)
    reach = np.ptp(at.reshape(582, TILE, 3), axis=1) + 1
    shapes, counts = np.unique(reach, axis=0, return_counts=True)
    told = {tuple(map(int, s)): int(n) for s, n in zip(shapes, counts, strict=True)}
    assert told == {(4, 4, 4): 540, (4, 8, 2): 27, (1, 4, 16): 12, (1, 8, 8): 3}


def test_rows_without_a_layout_are_all_exact() -> None:
    placed = all_exact(331, CPU)
    assert (placed.blocks, placed.tiles, placed.exact) == (0, 0, 331) and placed.rows.tolist() == list(range(331))

"""Every row of any sequence lies in exactly one tile, and a tile holds neighbours of one kind."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.backends.attention.base import exact_rows
from h3runtime.backends.attention.sparse.tiles import EDGE, TILE, grid_of, kept_cubes, tile, tile_all, why_no_grid
from h3runtime.core import KeyframeShape, PackedLayout, ReferenceShape
from h3runtime.packing.layout import pack

CPU = torch.device("cpu")


@st.composite
def layouts(draw: st.DrawFn) -> PackedLayout:
    """Ragged in everything: sides that no edge divides, and an odd latent side."""
    frames, height, width = (draw(st.integers(1, most)) for most in (9, 21, 27))
    guides = [KeyframeShape(4 * i, 1) for i in range(draw(st.integers(0, 2)))]
    references = [ReferenceShape("image", 1, 4, 2 * draw(st.integers(1, 40)))] * draw(st.integers(0, 1))
    tags = np.ones(draw(st.integers(1, 200)), dtype=np.int64)
    return pack(frames, height, width, draw(st.integers(1, 50)), tags, guides, references)


@settings(max_examples=30, deadline=None)
@given(layouts())
def test_every_row_is_in_exactly_one_tile(layout: PackedLayout) -> None:
    tiles = tile(layout, CPU)
    held = tiles.rows[tiles.rows >= 0]
    assert torch.equal(held.sort().values, torch.arange(layout.rows, dtype=torch.int32))
    assert torch.equal(tiles.sizes, (tiles.rows >= 0).sum(1).float()) and tiles.sizes.min() >= 1
    assert tiles.rows.shape[1] == TILE and tiles.exact_rows == exact_rows(layout)
    numbers = torch.arange(len(tiles.rows))[:, None].expand_as(tiles.rows)
    assert torch.equal(tiles.owner[held.long()], numbers[tiles.rows >= 0])


@settings(max_examples=30, deadline=None)
@given(layouts())
def test_cubes_are_cubes_and_exact_tiles_are_of_one_segment(layout: PackedLayout) -> None:
    tiles, grid, first = tile(layout, CPU), grid_of(layout), exact_rows(layout)
    assert why_no_grid(layout) is None
    assert tiles.cubes == math.prod(-(-side // EDGE) for side in grid)
    for rows in tiles.rows[tiles.exact :].numpy():
        at = np.unravel_index(rows[rows >= 0] - first, grid)
        assert all(len(set(axis // EDGE)) == 1 for axis in at)
    for rows in tiles.rows[: tiles.exact].numpy():
        held = rows[rows >= 0]
        assert sum(s.start <= held[0] and held[-1] < s.stop for s in layout.segments[:-1]) == 1
        assert held[-1] - held[0] == len(held) - 1


@given(st.floats(0.01, 1), st.integers(1, 3000))
def test_the_share_of_cubes_is_what_was_asked(share: float, cubes: int) -> None:
    kept = kept_cubes(share, cubes)
    assert 1 <= kept <= cubes and share * cubes - 1e-6 <= kept < share * cubes + 1


@pytest.mark.parametrize(
    ("share", "cubes", "kept"), [(1.0, 7, 7), (0.25, 660, 165), (0.1, 660, 66), (0.1, 30, 3), (0.1, 4, 1)]
)
def test_whole_shares_are_not_rounded_up(share: float, cubes: int, kept: int) -> None:
    """0.1 * 30 is 3.0000000000000004 in floating point."""
    assert kept_cubes(share, cubes) == kept


def test_the_canonical_clip() -> None:
    """1344x768x124: 37 x 24 x 42 rows (dit-contract §2.2)."""
    tiles = tile(pack(37, 48, 84, 207, np.ones(100, dtype=np.int64), [], []), CPU)
    assert (tiles.exact, tiles.exact_rows, tiles.cubes) == (2 + 7, 514, 10 * 6 * 11)
    assert int((tiles.sizes[tiles.exact :] == TILE).sum()) == 9 * 6 * 10


def test_rows_without_a_layout_are_all_exact() -> None:
    tiles = tile_all(331, CPU)
    assert (tiles.exact, tiles.exact_rows, tiles.cubes) == (6, 331, 0)
    assert tiles.rows[tiles.rows >= 0].tolist() == list(range(331))

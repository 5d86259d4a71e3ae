"""Thresholds of step reuse, and the widest of them that holds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from h3runtime.cli.calibration.ladder import NARROWEST, rungs, widest
from h3runtime.core import MAX_REUSE_THRESHOLD, REUSE_THRESHOLDS, CacheMode


@pytest.mark.parametrize("mode", REUSE_THRESHOLDS)
def test_a_ladder_reaches_from_narrow_to_the_widest_that_a_request_may_name(mode: CacheMode) -> None:
    found = rungs(mode)
    assert found[-1] == MAX_REUSE_THRESHOLD and list(found) == sorted(found)
    assert NARROWEST * REUSE_THRESHOLDS[mode] <= found[0] < 2 * NARROWEST * REUSE_THRESHOLDS[mode]
    assert all(wide / narrow < 1.8 for narrow, wide in pairwise(found))


@pytest.mark.parametrize("count", [0, 1, 2, 9, 12])
def test_halving_finds_every_edge_in_few_trials(count: int) -> None:
    for edge in range(-1, count):
        asked: list[int] = []

        def holds(index: int, edge: int = edge, asked: list[int] = asked) -> bool:
            asked.append(index)
            return index <= edge

        assert widest(count, holds) == (None if edge < 0 else edge)
        assert len(asked) <= 4 and len(set(asked)) == len(asked)

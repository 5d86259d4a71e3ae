"""Differences of two arrays: known values, what adds up, and what has no finite value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.media.agreement import Agreement

values = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)


def test_known_values() -> None:
    got = Agreement.of(np.array([3.0, 4.0]), np.array([0.0, 5.0]))
    assert (got.largest, got.mean, got.mean_square) == (3, 2, 5)
    assert got.rmse == pytest.approx(5**0.5) and got.rel_l2 == pytest.approx(10**0.5 / 5)
    assert got.cosine == pytest.approx(20 / 25)


@given(values, values)
def test_pieces_add_up(a: list[float], b: list[float]) -> None:
    size = min(len(a), len(b))
    x, y = np.array(a[:size]), np.array(b[:size])
    whole, pieces = Agreement.of(x, y), Agreement.of(x[:1], y[:1]) + Agreement.of(x[1:], y[1:])
    assert (pieces.count, pieces.largest, pieces.identical) == (whole.count, whole.largest, whole.identical)
    assert pieces.mean == pytest.approx(whole.mean) and pieces.rmse == pytest.approx(whole.rmse)
    assert Agreement() + whole == whole


@given(values)
def test_an_array_agrees_with_itself_exactly(a: list[float]) -> None:
    got = Agreement.of(np.array(a), np.array(a))
    assert (got.identical, got.largest, got.rmse, got.cosine, got.rel_l2) == (True, 0, 0, 1, 0)


@given(values, st.floats(0.1, 10))
def test_a_scaled_array_points_the_same_way(a: list[float], scale: float) -> None:
    x = np.array(a) + 2e3
    got = Agreement.of(x, scale * x)
    assert got.cosine == pytest.approx(1) and got.cosine <= 1
    assert got.rel_l2 == pytest.approx(abs(scale - 1), abs=1e-12)


def test_levels_of_eight_bits_do_not_wrap() -> None:
    got = Agreement.of(np.array([0, 255], np.uint8), np.array([255, 0], np.uint8))
    assert (got.largest, got.mean_square) == (255, 255**2)


def test_nothing_to_divide_by_is_none() -> None:
    nothing, something = np.zeros(3), np.ones(3)
    assert (Agreement.of(nothing, something).rel_l2, Agreement.of(nothing, something).cosine) == (None, None)
    assert (Agreement.of(something, nothing).rel_l2, Agreement.of(something, nothing).cosine) == (1, None)
    assert (Agreement.of(nothing, nothing).rel_l2, Agreement.of(nothing, nothing).cosine) == (0, 1)

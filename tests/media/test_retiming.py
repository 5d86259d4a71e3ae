"""Pictures at another rate: as many as the duration takes, each the one on display in its middle."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.media.retiming import picture_count, rate_of, tick_of, times_shown

RATES = st.floats(1, 120).map(rate_of)
LENGTHS = st.integers(0, 12).map(lambda n: 17 * n + 5)


@pytest.mark.parametrize(
    ("fps", "rate"),
    [
        (24, Fraction(24)),
        (30.0, Fraction(30)),
        (23.976, Fraction(24000, 1001)),
        (29.97, Fraction(30000, 1001)),
        (59.94, Fraction(60000, 1001)),
        (119.88, Fraction(120000, 1001)),
        (12.5, Fraction(25, 2)),
        (1, Fraction(1)),
        (0.1 + 24, Fraction(241, 10)),
    ],
)
def test_the_rate_that_a_number_stands_for(fps: float, rate: Fraction) -> None:
    assert rate_of(fps) == rate


@settings(deadline=None, max_examples=50)
@given(st.floats(1, 120))
def test_rates_are_near_and_fit_a_container(fps: float) -> None:
    assert abs(rate_of(fps) - Fraction(fps)) <= Fraction(1, 999) and rate_of(fps).denominator <= 1001


@settings(deadline=None, max_examples=50)
@given(LENGTHS, RATES)
def test_the_duration_stays_and_every_picture_is_counted(frames: int, rate: Fraction) -> None:
    counts = [times_shown(index, frames, rate) for index in range(frames)]
    assert sum(counts) == picture_count(frames, rate) and min(counts) >= 0
    # Half a picture of the slower clock, but one picture is the least that a clip has.
    length = Fraction(frames, 24)
    assert abs(picture_count(frames, rate) / rate - length) <= max(1 / rate / 2, 1 / rate - length)


@settings(deadline=None, max_examples=50)
@given(LENGTHS, RATES)
def test_each_picture_is_the_one_on_display_in_its_middle(frames: int, rate: Fraction) -> None:
    shown = [index for index in range(frames) for _ in range(times_shown(index, frames, rate))]
    for tick, index in enumerate(shown[:-1]):
        middle = (tick + Fraction(1, 2)) / rate
        assert Fraction(index, 24) <= middle <= Fraction(index + 1, 24)


@pytest.mark.parametrize(
    ("fps", "shown"),
    [
        (24, [0, 1, 2, 3, 4]),
        (48, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (12, [0, 2, 4]),
        (60, [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4]),
        (30, [0, 1, 1, 2, 3, 4]),
        (1, [4]),
    ],
)
def test_what_is_shown(fps: float, shown: list[int]) -> None:
    rate = rate_of(fps)
    assert [index for index in range(5) for _ in range(times_shown(index, 5, rate))] == shown


def test_24_is_untouched() -> None:
    assert [tick_of(index, Fraction(24)) for index in range(50)] == list(range(50))

"""The 24 fps clock: every slot has one picture, and it is the one that is seen then."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.media.intake.clip_clock import ClipClock, Stamp, slot


def shown(stamps: list[Stamp]) -> list[int]:
    """The picture of each slot."""
    clock, slots = ClipClock(), []
    for index, stamp in enumerate(stamps):
        slots += [index - 1] * len(clock.show(stamp))
    return slots + [len(stamps) - 1] * len(clock.end())


def constant(rate: Fraction | int, count: int, begin: Fraction = Fraction(0)) -> list[Stamp]:
    return [Stamp(begin + Fraction(i) / rate, 1 / Fraction(rate)) for i in range(count)]


@pytest.mark.parametrize(
    ("rate", "count", "want"),
    [
        (24, 5, [0, 1, 2, 3, 4]),
        (25, 25, [i for i in range(25) if i != 12]),
        (30, 6, [0, 1, 3, 4, 5]),
        (60, 6, [1, 3]),
        (12, 3, [0, 0, 1, 1, 2, 2]),
        (1, 3, [0] * 24 + [1] * 24 + [2] * 24),
        (Fraction(24000, 1001), 48, list(range(48))),
    ],
)
def test_constant_rates(rate, count: int, want: list[int]) -> None:
    got = shown(constant(rate, count))
    assert len(got) == len(want)
    assert got == want


def test_a_first_picture_that_is_not_at_zero_changes_nothing() -> None:
    want = shown(constant(30, 9))
    assert shown(constant(30, 9, Fraction(-7, 3))) == shown(constant(30, 9, Fraction(1001, 90000))) == want


def test_a_picture_waits_for_the_next_however_long() -> None:
    assert shown([Stamp(Fraction(0)), Stamp(Fraction(1, 2)), Stamp(Fraction(13, 24), Fraction(1, 12))]) == [
        *([0] * 12),
        1,
        *([2] * 2),
    ]


def test_of_pictures_at_one_time_the_last_is_seen() -> None:
    assert shown([Stamp(Fraction(0)), Stamp(Fraction(0)), Stamp(Fraction(0), Fraction(1, 24))]) == [2]


def test_time_that_goes_back_stands_still() -> None:
    assert shown([Stamp(Fraction(0)), Stamp(Fraction(5, 24)), Stamp(Fraction(1, 24)), Stamp(Fraction(6, 24))]) == [
        *([0] * 5),
        2,
        3,
    ]


def test_a_missing_time_is_the_end_of_the_picture_before() -> None:
    stamps = [Stamp(None, Fraction(1, 12)), Stamp(None, Fraction(1, 12)), Stamp(None, Fraction(1, 12))]
    assert shown(stamps) == [0, 0, 1, 1, 2, 2]


def test_the_last_duration_is_the_gap_before_if_the_file_has_none() -> None:
    assert shown([Stamp(Fraction(0)), Stamp(Fraction(1, 12))]) == [0, 0, 1, 1]
    assert shown([Stamp(Fraction(0)), Stamp(Fraction(1, 12), Fraction(1, 90000))]) == [0, 0, 1, 1]
    assert shown([Stamp(Fraction(0)), Stamp(Fraction(1, 12), Fraction(1, 24))]) == [0, 0, 1]


def test_a_clip_has_one_frame_at_least() -> None:
    assert shown([Stamp(Fraction(3))]) == [0]
    assert shown([Stamp(Fraction(3), Fraction(1, 100))]) == [0]
    assert shown([]) == []


times = st.fractions(min_value=-2, max_value=20, max_denominator=90_000)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(times, st.fractions(0, 1, max_denominator=1000)), min_size=1, max_size=40))
def test_every_slot_shows_the_picture_of_its_time(stamps: list[tuple[Fraction, Fraction]]) -> None:
    ordered = sorted(stamps, key=lambda stamp: stamp[0])
    got = shown([Stamp(time, duration) for time, duration in ordered])
    first = ordered[0][0]
    begins = [floor(24 * (time - first) + Fraction(1, 2)) for time, _ in ordered]
    want = [max(i for i, begin in enumerate(begins) if begin <= k) for k in range(len(got))]
    assert got == want


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), times), max_size=40), st.one_of(st.none(), st.fractions(-1, 1)))
def test_whatever_a_file_says_slots_are_counted_once(broken: list[Fraction | None], duration: Fraction | None) -> None:
    got = shown([Stamp(time, duration) for time in broken])
    assert got == sorted(got)
    assert bool(got) == bool(broken)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 15, 24, 25, 30, 50, 60, 90]), st.integers(1, 200))
def test_length_is_that_of_the_clip(rate: int, count: int) -> None:
    assert len(shown(constant(rate, count))) == max(1, slot(Fraction(count, rate)))

"""Cuts lie on one clock: no error adds up, nothing is missing, nothing is there twice."""

from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.packing.cuts import cuts, exact, share, shares
from h3runtime.packing.geometry import is_legal_frames

SECONDS = st.lists(st.decimals("0.05", "20", places=3).map(float), min_size=1, max_size=40)
OVERLAPS = st.sampled_from([0, 5, 22, 39, 56])


def test_thirty_times_five_point_two_is_exactly_the_sum() -> None:
    assert cuts([exact(5.2)] * 30)[-1] == 3744 == 24 * 156
    # What floats make of it, added one by one (`sum` compensates from Python 3.12 on).
    assert list(accumulate([5.2] * 30))[-1] != 156


@pytest.mark.parametrize(("written", "meant"), [(5.2, Fraction(26, 5)), (3, Fraction(3)), (1e-05, Fraction(1, 100000))])
def test_a_number_is_what_was_written(written: float, meant: Fraction) -> None:
    assert exact(written) == meant


def test_a_chain_by_hand() -> None:
    # 124 frames of 5.1667 s; then 22 + 125 = 147 -> 158; a hard cut: 48 -> 56.
    got = shares([Fraction(124, 24), exact(5.2), exact(2)], [22, 22, 0])
    assert got == ((0, 124, 0, 124), (124, 249, 22, 158), (249, 297, 0, 56))


@pytest.mark.parametrize(
    ("start", "wanted", "overlap"), [(0, 22, 0), (1, 22, 1), (4, 22, 1), (5, 22, 5), (21, 22, 5), (22, 22, 22)]
)
def test_a_guide_takes_what_is_there(start: int, wanted: int, overlap: int) -> None:
    assert share(start, start + 10, wanted).overlap == overlap


@given(SECONDS, st.data())
def test_no_gap_no_overlap_and_the_right_total(seconds: list[float], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(OVERLAPS, min_size=len(seconds), max_size=len(seconds)))
    got = shares([exact(s) for s in seconds], wanted)
    assert len(got) == len(seconds)
    assert [s.start for s in got] == [0, *(s.stop for s in got[:-1])]
    assert got[-1].stop == round(24 * sum(map(exact, seconds), Fraction(0)))
    for s, n in zip(got, wanted, strict=True):
        assert s.length >= 1
        assert is_legal_frames(s.frames) and s.overlap + s.length <= s.frames
        assert s.frames == 5 or s.frames - 17 < s.overlap + s.length
        assert s.overlap <= min(n, s.start) and (s.overlap in (0, 1) or is_legal_frames(s.overlap))


@given(SECONDS)
def test_each_cut_is_within_half_a_frame_of_its_time(seconds: list[float]) -> None:
    total = Fraction(0)
    for wanted, cut in zip(seconds, cuts([exact(s) for s in seconds]), strict=True):
        total += exact(wanted)
        assert abs(Fraction(cut, 24) - total) <= Fraction(1, 48)

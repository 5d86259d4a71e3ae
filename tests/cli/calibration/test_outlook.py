"""How many clips are left, and how long they take, about."""

from __future__ import annotations

import pytest

from h3runtime.cli.calibration.outlook import Outlook, View


def test_it_counts_what_is_planned_and_what_comes_on_top() -> None:
    seen: list[View] = []
    now = iter(float(second) for second in range(0, 1000, 10))
    outlook = Outlook([4, 6], seen.append, lambda: next(now))
    outlook.begin_part()
    for done in range(4):
        outlook("exact", done, 4)
    assert [view.left for view in seen] == [10, 9, 8, 7]
    assert seen[0].seconds is None and seen[3].seconds == pytest.approx(70.0)
    assert seen[0].told == "0/4 clips, 10 more in all"
    assert seen[3].told == "3/4 clips, 7 more in all, about 70 s for them"
    outlook.begin_part()
    outlook("high: trying", 0, 3)
    outlook("high: proving", 0, 32)
    assert seen[-2].left == 6 and seen[-1].left == 32
    assert [view.fraction for view in seen] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.0])


def test_what_a_part_did_not_need_is_not_left() -> None:
    seen: list[View] = []
    outlook = Outlook([5, 5, 5], seen.append)
    for _ in range(3):
        outlook.begin_part()
    outlook("low", 0, 5)
    assert seen[-1].left == 5 and seen[-1].fraction == pytest.approx(2 / 3)


@pytest.mark.parametrize(("seconds", "told"), [(9.4, "9 s"), (60.0, "60 s"), (600.0, "10 min"), (7200.0, "2.0 h")])
def test_time_is_told_in_words(seconds: float, told: str) -> None:
    assert View("x", 1, 2, 3, seconds, 0.5).told == f"1/2 clips, 3 more in all, about {told} for them"

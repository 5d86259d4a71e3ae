"""The fastest choice that keeps a promise, on clips whose figures are a formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pytest

from h3runtime.cli.calibration.search import fastest, widest_threshold
from h3runtime.cli.calibration.trials import Clip, Outcome, Timed
from h3runtime.core import MAX_REUSE_THRESHOLD
from h3runtime.quality.levels import LEVELS, Choice

SSIM = {"bf16": 1.0, "int8": 0.995, "fp4": 0.93}
SECONDS = {"bf16": 4.0, "int8": 3.0, "fp4": 2.0}
COST = {"none": 0.0, "easycache": 0.06, "h3_cache": 0.5, "first_block": 20.0}


class Attempts:
    """SSIM falls with the threshold, and time with it."""

    def __init__(self) -> None:
        self.made: list[Choice] = []
        self.limits: list[float] = []

    def __call__(self, choice: Choice, seconds: float) -> Outcome:
        self.made.append(choice)
        self.limits.append(seconds)
        threshold = choice.cache_threshold or 0.0
        ssim = SSIM[choice.linear] - COST[choice.cache_mode] * threshold
        seconds = SECONDS[choice.linear] / (1 + threshold)
        clips = tuple(Clip(choice.told, prompt, 0, ssim, 0.1, seconds, 8, 0) for prompt in range(4))
        return Outcome(choice, clips, 4.0, 4, 1)


BASES = tuple(Choice("sdpa", linear) for linear in SSIM)


def recorded(outcomes: Sequence[Outcome]) -> list[Timed]:
    return [outcome.recorded for outcome in outcomes]


def test_high_takes_the_fastest_that_is_close_enough_and_no_reuse() -> None:
    attempts = Attempts()
    found = fastest(LEVELS["high"], BASES, attempts, recorded)
    assert found is not None and found[0].choice == Choice("sdpa", "int8") and found[1].ratio == pytest.approx(4 / 3)
    assert attempts.made == list(BASES) and attempts.limits == [math.inf, 4.0, 3.0]


def test_reuse_goes_on_top_of_the_fastest_base() -> None:
    found = fastest(LEVELS["medium"], BASES, Attempts(), recorded)
    assert found is not None
    choice = found[0].choice
    assert (choice.linear, choice.cache_mode) == ("fp4", "easycache")
    # 0.93 - 0.06 t >= 0.9 up to t = 0.5.
    assert 0.5 / 1.8 <= (choice.cache_threshold or 0) <= 0.5


def test_what_costs_too_much_at_any_width_is_left_out() -> None:
    base = Choice("sdpa", "fp4", "first_block")
    assert widest_threshold(LEVELS["medium"], base, "first_block", partial(Attempts(), seconds=1.0)) is None
    free = widest_threshold(
        LEVELS["low"], Choice("sdpa", "bf16", "none"), "easycache", partial(Attempts(), seconds=1.0)
    )
    assert free is not None and free.choice.cache_threshold == MAX_REUSE_THRESHOLD


def test_what_is_fastest_is_told_by_the_clock() -> None:
    def clock(outcomes: Sequence[Outcome]) -> list[Timed]:
        return [Timed(4.0, float(SECONDS[outcome.choice.linear] < 4), 1.0) for outcome in outcomes]

    found = fastest(LEVELS["high"], BASES, Attempts(), clock)
    assert found is not None and found[0].choice.linear == "bf16"


def test_nothing_may_be_close_enough() -> None:
    assert fastest(LEVELS["high"], BASES[2:], Attempts(), recorded) is None

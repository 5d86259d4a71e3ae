"""The fastest choice that keeps a promise, on clips whose figures are a formula."""

from __future__ import annotations

import math

import pytest

from h3runtime.cli.calibration.search import fastest, widest_threshold
from h3runtime.cli.calibration.trials import Clip, Outcome
from h3runtime.core import REUSE_THRESHOLDS
from h3runtime.quality.levels import LEVELS, Choice

SSIM = {"bf16": 1.0, "int8": 0.995, "fp4": 0.93}
SECONDS = {"bf16": 4.0, "int8": 3.0, "fp4": 2.0}
COST = {"none": 0.0, "easycache": 0.2, "h3_cache": 0.5, "first_block": 20.0}


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


def test_high_takes_the_fastest_that_is_close_enough_and_no_reuse() -> None:
    attempts = Attempts()
    found = fastest(LEVELS["high"], BASES, attempts)
    assert found is not None and found.choice == Choice("sdpa", "int8") and found.time_ratio == pytest.approx(4 / 3)
    assert attempts.made == list(BASES) and attempts.limits == [math.inf, 4.0, 3.0]


def test_reuse_goes_on_top_of_the_fastest_base() -> None:
    found = fastest(LEVELS["medium"], BASES, Attempts())
    assert found is not None and found.choice.linear == "fp4" and found.choice.cache_mode == "easycache"
    # 0.93 - 0.2 t >= 0.9 up to t = 0.15; four halvings of a hundredfold span come within 1.34 of the edge.
    assert 0.15 / 1.34 <= (found.choice.cache_threshold or 0) <= 0.15


def test_what_costs_too_much_at_any_width_is_left_out() -> None:
    base = Choice("sdpa", "fp4", "first_block")
    assert widest_threshold(LEVELS["medium"], base, "first_block", Attempts()) is None
    free = widest_threshold(LEVELS["low"], Choice("sdpa", "bf16", "easycache"), "easycache", Attempts())
    assert free is not None and free.choice.cache_threshold == 10 * REUSE_THRESHOLDS["easycache"]


def test_nothing_may_be_close_enough() -> None:
    assert fastest(LEVELS["high"], BASES[2:], Attempts()) is None

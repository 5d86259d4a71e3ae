"""The fastest choice that keeps a promise, on clips whose figures are a formula."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from h3runtime.cli.calibration.ladder import rungs
from h3runtime.cli.calibration.outcome import Clip, Outcome, Timed
from h3runtime.cli.calibration.search import SAMPLED, TRIED, Candidates, fastest
from h3runtime.quality.levels import LEVELS, REUSE, Choice, Level

SSIM = {"bf16": 1.0, "int8": 0.995, "fp4": 0.93, "fp2": 0.5, "fp32": 1.0}
SECONDS = {"bf16": 4.0, "int8": 3.0, "fp4": 2.2, "fp2": 1.0, "fp32": 8.0}
COST = {"none": 0.0, "easycache": 0.06, "h3_cache": 0.5, "first_block": 20.0}
PROMPTS = 8


class Attempts:
    """SSIM falls with the threshold, and time with it. off: what the first few clips of a choice hide of its SSIM."""

    def __init__(self, off: float = 0.0) -> None:
        self.some_of: list[Choice] = []
        self.all_of: list[Choice] = []
        self._off = off

    def some(self, choice: Choice, count: int, level: Level, told: str) -> Outcome:
        assert told.startswith(f"{level.name}: ") and choice.told in told
        self.some_of.append(choice)
        return self._outcome(choice, count, self._off)

    def all(self, choice: Choice, level: Level, told: str) -> Outcome:
        assert told.startswith(f"{level.name}: proving") and choice.told in told
        self.all_of.append(choice)
        return self._outcome(choice, PROMPTS, 0.0)

    def timed(self, outcomes: Sequence[Outcome], told: str) -> Sequence[Timed]:
        assert told
        return [outcome.recorded for outcome in outcomes]

    def _outcome(self, choice: Choice, count: int, off: float) -> Outcome:
        threshold = choice.cache_threshold or 0.0
        ssim = SSIM[choice.linear] - COST[choice.cache_mode] * threshold + off * bool(threshold)
        seconds = SECONDS[choice.linear] / (1 + threshold)
        clips = tuple(Clip(choice.told, prompt, 0, ssim, 0.1, seconds, 8, 0) for prompt in range(count))
        return Outcome(choice, clips, 4.0, PROMPTS, 1)


def bases(*linears: str) -> tuple[Choice, ...]:
    return tuple(Choice("sdpa", linear) for linear in linears)


EXACT = Choice("sdpa", "bf16")


def test_the_fastest_that_passes_is_proven_and_nothing_slower() -> None:
    attempts = Attempts()
    found = fastest(LEVELS["high"], Candidates(bases("fp32", "bf16", "int8", "fp4"), (), EXACT), attempts)
    assert found is not None and found[0].choice == Choice("sdpa", "int8") and found[1].ratio == pytest.approx(4 / 3)
    assert set(attempts.some_of) == set(bases("fp32", "bf16", "int8", "fp4"))
    assert attempts.all_of[:2] == list(bases("fp4", "int8")) and Choice("sdpa", "fp32") not in attempts.all_of


def test_nothing_is_slower_than_what_is_exact() -> None:
    attempts = Attempts()
    found = fastest(LEVELS["high"], Candidates(bases("fp32", "fp4"), (), EXACT), attempts)
    assert found is not None and found[0].choice == EXACT and found[1].ratio == 1.0
    assert Choice("sdpa", "fp32") not in attempts.all_of
    found = fastest(LEVELS["high"], Candidates(bases("fp32", "fp4"), (), None), attempts)
    assert found is not None and found[0].choice.linear == "fp32"


def test_the_hopeless_are_not_proven() -> None:
    attempts = Attempts()
    fastest(LEVELS["medium"], Candidates(bases("fp2", "bf16"), (), EXACT), attempts)
    # Three of eight clips at 0.5 leave no hope.
    assert Choice("sdpa", "fp2") in attempts.some_of and Choice("sdpa", "fp2") not in attempts.all_of


def test_reuse_goes_on_the_fastest_and_on_what_is_close() -> None:
    attempts = Attempts()
    found = fastest(LEVELS["medium"], Candidates(bases("int8", "fp4"), REUSE, EXACT), attempts)
    assert found is not None
    # On fp4 0.93 - 0.06 t >= 0.9 up to t = 0.5, on int8 0.995 - 0.06 t up to 1.58: rungs 0.3 and 0.949, 1.7 and 1.5 s.
    assert found[0].choice == Choice("sdpa", "int8", "easycache", 0.949)
    assert found[1].seconds == pytest.approx(3 / 1.949)
    assert {choice.linear for choice in attempts.some_of if choice.cache_mode != "none"} == {"int8", "fp4"}


def test_each_ladder_is_halved_and_only_the_fastest_is_proven() -> None:
    attempts = Attempts()
    fastest(LEVELS["medium"], Candidates(bases("int8"), REUSE, EXACT), attempts)
    reusing = {choice for choice in attempts.some_of if choice.cache_mode != "none"}
    assert len(reusing) <= 12 and [c.cache_mode for c in attempts.all_of].count("easycache") == 1
    assert all(c.cache_mode != "first_block" for c in attempts.all_of)


def test_a_threshold_that_fails_makes_way_for_the_next_narrower_one() -> None:
    attempts = Attempts(off=0.05)
    found = fastest(LEVELS["medium"], Candidates(bases("int8"), ("easycache",), EXACT), attempts)
    assert found is not None
    proven = [choice.cache_threshold for choice in attempts.all_of if choice.cache_mode == "easycache"]
    ladder = rungs("easycache")
    assert proven == [1.69, 0.949] and ladder.index(1.69) == ladder.index(0.949) + 1
    assert found[0].choice.cache_threshold == 0.949 and found[0].is_complete


def test_what_a_stricter_level_settled_on_is_never_beaten_by_something_slower() -> None:
    kept = Choice("sdpa", "int8", "easycache", 0.949)
    found = fastest(LEVELS["low"], Candidates(bases("int8"), (), EXACT), Attempts(), [kept])
    assert found is not None and found[0].choice == kept


def test_what_is_fastest_is_told_by_the_clock() -> None:
    class Clocked(Attempts):
        def timed(self, outcomes: Sequence[Outcome], told: str) -> Sequence[Timed]:
            assert told
            return [Timed(4.0, 1.0 if outcome.choice == EXACT else 2.0, 1.0) for outcome in outcomes]

    found = fastest(LEVELS["high"], Candidates(bases("int8"), (), EXACT), Clocked())
    assert found is not None and found[0].choice == EXACT


def test_nothing_may_be_close_enough() -> None:
    assert fastest(LEVELS["high"], Candidates(bases("fp4"), (), None), Attempts()) is None


def test_a_plan_counts_about_what_a_search_takes() -> None:
    candidates = Candidates(bases("int8", "fp4"), REUSE, EXACT)
    assert candidates.likely_clips(32) == 2 * TRIED + 32 + 2 * SAMPLED * 3 * 3 + 32
    assert Candidates(bases("int8"), (), None).likely_clips(32) == TRIED + 32

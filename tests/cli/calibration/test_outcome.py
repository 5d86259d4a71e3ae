"""What clips say of a level, before all of them are there and then."""

from __future__ import annotations

import numpy as np
import pytest

from h3runtime.cli.calibration.outcome import DOUBT, Clip, Outcome
from h3runtime.quality.bounds import lower_bound
from h3runtime.quality.levels import LEVELS, Choice

HIGH, MEDIUM, LOW = LEVELS["high"], LEVELS["medium"], LEVELS["low"]
CHOICE = Choice("sdpa", "int8")
PROMPTS, SEEDS = 16, 2


def clip(ssim: float, audio_db: float = 0.1, place: int = 0, seconds: float = 2.0, forwards: int = 4) -> Clip:
    return Clip(CHOICE.told, place % PROMPTS, place // PROMPTS, ssim, audio_db, seconds, forwards, 0)


def outcome(*clips: Clip) -> Outcome:
    return Outcome(CHOICE, clips, 3.0, PROMPTS, SEEDS)


def of(*ssims: float, audio_db: float = 0.1) -> Outcome:
    return outcome(*(clip(ssim, audio_db, place) for place, ssim in enumerate(ssims)))


def test_a_promise_is_kept_by_the_bound_of_all_clips_whatever_their_order() -> None:
    rng = np.random.default_rng(1)
    figures = 0.95 + 0.02 * rng.standard_normal((PROMPTS, SEEDS))
    clips = [clip(float(figures[p, s]), place=p + PROMPTS * s) for s in range(SEEDS) for p in range(PROMPTS)]
    rng.shuffle(clips)  # type: ignore[arg-type]
    made = outcome(*clips)
    assert made.is_complete and made.ssim.bound == pytest.approx(lower_bound(figures), abs=1e-6)
    assert made.ssim.worst == pytest.approx(figures.min(), abs=1e-6)
    assert made.meets(MEDIUM) and not made.meets(HIGH)
    assert not outcome(*clips[:-1]).meets(MEDIUM)


def test_close_pictures_with_a_far_sound_keep_nothing() -> None:
    made = of(*[0.99] * PROMPTS * SEEDS, audio_db=1.6)
    assert made.meets(LOW) and not made.meets(MEDIUM)


def test_hopeless_is_what_exact_clips_could_not_save() -> None:
    # 32 clips may lose 0.96 for high: the second one of 0.5 is too much.
    assert not of(0.5).is_hopeless(HIGH) and of(0.5, 0.5).is_hopeless(HIGH) and not of(0.5, 0.5).is_hopeless(LOW)
    assert of(0.99, audio_db=40.0).is_hopeless(HIGH) and not of(0.99, audio_db=40.0).is_hopeless(MEDIUM)


def test_a_clip_that_the_engine_refuses_ends_all_hope() -> None:
    made = outcome(*[clip(0.99, place=place) for place in range(31)], clip(0.0, 100.0, 31, forwards=0))
    assert made.is_hopeless(LOW) and not made.meets(LOW) and not made.is_likely(LOW)


def test_doubt_needs_a_few_clips_that_are_surely_below() -> None:
    assert not of(*[0.85] * (DOUBT - 1)).is_doubtful(MEDIUM)
    assert of(*[0.85] * DOUBT).is_doubtful(MEDIUM) and not of(*[0.85] * DOUBT).is_doubtful(LOW)
    # One bad clip of four says little of the others.
    assert not of(0.99, 0.99, 0.99, 0.5).is_doubtful(MEDIUM)
    assert of(*[0.99] * DOUBT, audio_db=1.7).is_doubtful(MEDIUM)


def test_choices_that_would_pass_are_seldom_doubted() -> None:
    """By 1.645 standard errors of all prompts, which is what a bound takes."""
    rng, given_up = np.random.default_rng(2), 0
    for _ in range(300):
        mean = MEDIUM.ssim + 1.645 * 0.03 / np.sqrt(PROMPTS)
        figures = (mean + 0.03 * rng.standard_normal(PROMPTS)).tolist()
        given_up += any(of(*figures[:count]).is_doubtful(MEDIUM) for count in range(DOUBT, PROMPTS))
    assert given_up / 300 < 0.12


def test_likely_goes_by_the_mean() -> None:
    assert of(0.91, 0.91, 0.89, 0.90).is_likely(MEDIUM) and not of(0.89, 0.91, 0.89, 0.90).is_likely(MEDIUM)
    assert of(0.99, audio_db=1.5).is_likely(MEDIUM) and not of(*[0.99] * 4, audio_db=1.6).is_likely(MEDIUM)


def test_seconds_leave_out_the_clip_that_compiles_and_what_else_a_machine_does() -> None:
    clips = [clip(1.0, place=p, seconds=s, forwards=f) for p, (s, f) in enumerate([(60, 4), (2, 4), (9, 4), (4, 8)])]
    made = outcome(*clips)
    assert made.seconds == 4 and made.undisturbed == pytest.approx(0.5 * 5)
    assert outcome(clips[0]).seconds == 60 and outcome(clips[0]).undisturbed == 60
    assert made.recorded.ratio == pytest.approx(3.0 / 4)

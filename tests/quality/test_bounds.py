"""The bootstrap's bounds: on figures whose answer is known, and how often they are right."""

from __future__ import annotations

import numpy as np
import pytest

from h3runtime.quality.bounds import lower_bound, upper_bound


def test_equal_figures_are_their_own_bounds() -> None:
    assert lower_bound([[0.9, 0.9]] * 16) == pytest.approx(0.9) == upper_bound([[0.9, 0.9]] * 16)


def test_two_prompts_can_be_counted_out() -> None:
    """Of the four equally likely resamples of 0 and 1, one has the mean 0 and one the mean 1."""
    assert lower_bound([[0.0], [1.0]]) == 0.0 and upper_bound([[0.0], [1.0]]) == 1.0


def test_many_prompts_have_the_normal_bound() -> None:
    figures = np.random.default_rng(1).normal(0.9, 0.05, (400, 1))
    error = figures.std() / 20
    assert lower_bound(figures) == pytest.approx(figures.mean() - 1.645 * error, abs=0.1 * error)
    assert upper_bound(figures) == pytest.approx(figures.mean() + 1.645 * error, abs=0.1 * error)


def test_seeds_of_one_prompt_are_no_samples_of_their_own() -> None:
    few = np.random.default_rng(2).normal(0.9, 0.05, (16, 1))
    assert lower_bound(np.repeat(few, 8, axis=1)) == pytest.approx(lower_bound(few))


def test_the_bound_is_right_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    right = np.mean([lower_bound(rng.normal(0.0, 1.0, (16, 2))) <= 0.0 for _ in range(300)])
    # The percentile method is a little too sure of 16 samples: 92 % rather than 95.
    assert 0.89 <= right <= 0.97

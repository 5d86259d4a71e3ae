"""When a step is reused, what a line through two velocities says, how many steps a schedule spares: numbers only."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.core import REUSE_THRESHOLDS, SamplerSettings, StepReuse
from h3runtime.denoiser.reuse.forecast import Extrapolation, clock
from h3runtime.denoiser.reuse.outlook import likely_skips
from h3runtime.denoiser.reuse.rule import Rule, Window
from h3runtime.denoiser.schedule import shift_base, sigmas

CHANGES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30)
MODES = tuple(REUSE_THRESHOLDS)


def decisions(mode: str, threshold: float, changes: list[tuple[float, float]]) -> list[bool]:
    """As a run asks: what isn't reused is computed."""
    rule = Rule.of(StepReuse(mode, threshold))  # type: ignore[arg-type]
    made = []
    for change in changes:
        made.append(rule.allows(change))
        if not made[-1]:
            rule.computed()
    return made


@given(CHANGES, st.floats(0, 1.5))
def test_a_cumulative_rule_reuses_while_both_sums_stay_below(changes, threshold) -> None:
    made = decisions("easycache", threshold, changes)
    starts = [0, *(index + 1 for index, reused in enumerate(made) if not reused)]
    for start, stop in pairwise([*starts, len(made) + 1]):
        run = changes[start:stop]
        for stream in (0, 1):
            sums = list(accumulate(change[stream] for change in run))
            assert all(total < threshold for total in sums[: stop - start - 1])
        if stop <= len(made):
            assert max(sum(change[stream] for change in run) for stream in (0, 1)) >= threshold


@given(CHANGES, st.floats(0, 1.5))
def test_a_rule_of_single_steps_looks_at_nothing_else(changes, threshold) -> None:
    for mode in ("h3_cache", "first_block"):
        assert decisions(mode, threshold, changes) == [max(change) < threshold for change in changes]


@given(CHANGES, st.sampled_from(MODES))
def test_nothing_is_below_a_threshold_of_nothing(changes, mode) -> None:
    assert not any(decisions(mode, 0.0, changes))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [(0.0, 9.0), (9.0, 0.0), (math.nan, 0.0), (0.0, math.nan)])
def test_one_stream_alone_has_a_step_computed(mode, change) -> None:
    assert decisions(mode, 0.5, [change, (0.1, 0.1)]) == [False, True]


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 30), st.floats(0, 1))
def test_a_window_is_a_stretch_of_the_base(start, end, shift, base) -> None:
    window = Window.of(StepReuse("easycache", 0.1, start, end), shift)
    if abs(base - (1 - start)) > 1e-9 and abs(base - (1 - end)) > 1e-9:
        assert window.holds(shift_base(base, shift)) == (1 - end < base < 1 - start)


def test_the_widest_window_holds_all_but_the_clean_end() -> None:
    window = Window.of(StepReuse("easycache", 0.1, 0.0, 1.0), 12.0)
    assert window.holds(1.0) and window.holds(1e-6) and not window.holds(0.0)
    assert (Window.of(StepReuse("easycache", 0.1), 12.0).first, 0.3871) == pytest.approx((0.98551, 0.3871), abs=1e-4)


def test_a_held_velocity_is_the_last_one() -> None:
    held = Extrapolation("hold")
    for sigma, value in ((0.9, 1.0), (0.8, 2.0)):
        held.note(sigma, torch.full((2,), value))
    assert torch.equal(held.at(0.5), torch.full((2,), 2.0))


@given(st.floats(0.1, 0.9), st.floats(0.1, 0.9))
def test_a_delta_is_the_last_denoised_delta_as_it_was(before, sigma) -> None:
    """D - x = -sigma v of the step that is reused is that of the one that was computed."""
    delta = Extrapolation("delta")
    delta.note(0.95, torch.full((2,), 5.0))
    delta.note(before, torch.full((2,), 2.0))
    assert (-sigma * delta.at(sigma)).tolist() == pytest.approx([-before * 2.0] * 2, rel=1e-5)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.05, 0.9))
def test_a_line_is_followed_where_two_velocities_say_which(slope, level, sigma) -> None:
    line = Extrapolation("taylor")
    line.note(0.99, torch.tensor([slope * clock(0.99) + level]))
    assert line.at(sigma).item() == pytest.approx(slope * clock(0.99) + level, abs=1e-5)
    line.note(0.95, torch.tensor([slope * clock(0.95) + level]))
    assert line.at(sigma).item() == pytest.approx(slope * clock(sigma) + level, abs=1e-4)


def test_a_line_keeps_the_dtype_of_what_it_goes_through() -> None:
    line = Extrapolation("taylor")
    line.note(0.9, torch.ones(3, dtype=torch.bfloat16))
    line.note(0.8, torch.zeros(3, dtype=torch.bfloat16))
    assert line.at(0.7).dtype == torch.bfloat16 and bool((line.at(0.7) < 0).all())


def test_clocks_are_finite_at_both_ends() -> None:
    assert math.isfinite(clock(1.0)) and math.isfinite(clock(0.0)) and clock(1.0) < clock(0.5) < clock(0.0)


@pytest.mark.parametrize("mode", MODES)
def test_no_steps_are_foretold_to_be_spared_by_nothing(mode) -> None:
    assert likely_skips(SamplerSettings(20), None) == likely_skips(SamplerSettings(20), StepReuse(mode, 0.0)) == 0


@pytest.mark.parametrize(
    ("steps", "measured"),
    [(12, {0.1: 3.8, 0.15: 4.8, 0.2: 5.2, 0.3: 5.8}), (20, {0.1: 8.2, 0.15: 9.3, 0.2: 9.9, 0.3: 10.8})],
)
def test_what_is_foretold_is_near_the_mean_of_the_trained_models_runs(steps, measured) -> None:
    """128x128x22, 9 prompts (benchmarks/LOG.md)."""
    for threshold, spared in measured.items():
        told = likely_skips(SamplerSettings(steps), StepReuse("easycache", threshold))
        assert told == pytest.approx(spared, abs=1.0)


@given(st.integers(1, 60), st.floats(0, 3), st.floats(0, 3), st.sampled_from(("easycache", "h3_cache")))
def test_a_wider_threshold_spares_no_fewer_of_single_steps_and_never_the_first(steps, one, other, mode) -> None:
    few, many = (likely_skips(SamplerSettings(steps), StepReuse(mode, t, 0.0, 1.0)) for t in sorted((one, other)))
    assert 0 <= many <= max(0, len(sigmas(SamplerSettings(steps))) - 1 - 2), "two steps are computed at least"
    assert mode == "easycache" or few <= many

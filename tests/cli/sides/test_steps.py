"""Which steps of two schedules are compared with each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.cli.sides.session import chosen_steps
from h3runtime.cli.sides.steps import paired
from h3runtime.core import SamplerSettings
from h3runtime.denoiser.schedule import sigmas
from h3runtime.errors import InvalidRequest


def levels(steps: int, scheduler: str = "beta") -> list[float]:
    return list(sigmas(SamplerSettings(steps=steps, scheduler=scheduler)).tolist())


def test_one_schedule_is_paired_by_step() -> None:
    assert paired(levels(3), levels(3)) == ((0, 0), (1, 1), (2, 2))


@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from(["beta", "simple", "linear"]))
def test_two_schedules_are_paired_by_sigma(first: int, second: int, scheduler: str) -> None:
    a, b = levels(first), levels(second, scheduler)
    pairs = paired(a, b)
    assert len(pairs) == min(len(a), len(b)) - 1 and pairs[0] == (0, 0)
    assert [(j, i) for i, j in pairs] == [*paired(b, a)] or len(a) == len(b)
    if len(a) <= len(b):
        assert all(abs(a[i] - b[j]) == min(abs(a[i] - y) for y in b[:-1]) for i, j in pairs)


@pytest.mark.parametrize(
    ("text", "count", "steps"),
    [("auto", 12, (0, 5, 11)), ("auto", 1, (0,)), ("auto", 2, (0, 1)), ("none", 5, ()), ("3,1,3", 4, (1, 3))],
)
def test_chosen_steps(text: str, count: int, steps: tuple[int, ...]) -> None:
    assert chosen_steps(text, count) == steps


@pytest.mark.parametrize("text", ["4", "-1", "all", "1,,2"])
def test_other_steps_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="blocks_at"):
        chosen_steps(text, 4)

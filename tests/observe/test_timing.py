"""Seconds per stage add up, on whatever clock is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.observe.timing import StageTimer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000)), max_size=20))
def test_stages_add_up(stages):
    clock = Clock()
    timer = StageTimer(clock)
    for name, seconds in stages:
        with timer.stage(name):
            clock.now += seconds
    assert timer.timings == {name: sum(s for n, s in stages if n == name) for name, _ in stages}
    assert timer.total == sum(seconds for _, seconds in stages)


def test_a_stage_that_fails_counts():
    clock = Clock()
    timer = StageTimer(clock)
    with pytest.raises(RuntimeError), timer.stage("mux"):
        clock.now += 3
        raise RuntimeError
    assert timer.timings == {"mux": 3}


def test_nested_stages_count_in_full_and_the_view_can_t_be_written():
    clock = Clock()
    timer = StageTimer(clock)
    with timer.stage("outer"):
        clock.now += 1
        with timer.stage("inner"):
            clock.now += 2
    assert dict(timer.timings) == {"inner": 2, "outer": 3}
    with pytest.raises(TypeError):
        timer.timings["outer"] = 0  # type: ignore[index]


def test_the_default_clock_runs_forward():
    timer = StageTimer()
    with timer.stage("nothing"):
        pass
    assert timer.timings["nothing"] >= 0

"""`attention_plan`: every step has one backend, whichever way its ranges are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_plan


def judged(plan: Any, steps: int = 6, **more: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    read = read_body({"prompt": "x", "steps": steps, "attention_plan": plan, **more})
    verdict = Verdict(read)
    chosen = judge_plan(read.body, verdict)
    return chosen, {offence.field: offence.message for offence in (*read.offences, *verdict.offences)}


def entry(steps: str, attention: str = "a", **more: Any) -> dict[str, Any]:
    return {"steps": steps, "attention": attention, **more}


@pytest.mark.parametrize(
    ("plan", "chosen"),
    [
        ([entry("0-5")], "aaaaaa"),
        ([entry("0-1"), entry("2", "b"), entry("3-5")], "aabaaa"),
        ([entry("3-5", "b"), entry("0-2")], "aaabbb"),
        ([entry("0-5", every=2), entry("0-5", "b")], "ababab"),
        ([entry("0-5", every=3), entry("1-5", "b")], "abbabb"),
        ([entry("0-3", every=2), entry("4-5", "b")], "ababbb"),
        ([entry("0-5", every=3), entry("1-4", "b", every=3), entry("0-5", "c")], "abcabc"),
        ([entry("0-2", every=2), entry("0-2", "b"), entry("3-5", "c", every=2), entry("3-5")], "abacac"),
    ],
)
def test_each_step_gets_the_backend_of_its_entry(plan: Any, chosen: str) -> None:
    assert judged(plan) == (tuple(chosen), {})


@pytest.mark.parametrize(
    ("plan", "field", "told"),
    [
        ([], "attention_plan", "steps 0, 1, 2, 3, 4, ... are run by no entry"),
        ([entry("0-4")], "attention_plan", "step 5 is run by no entry"),
        ([entry("0-5", every=2)], "attention_plan", "steps 1, 3, 5 are run by no entry"),
        ([entry("0-3"), entry("3-5")], "attention_plan[1].steps", "step 3 is run by attention_plan[0] already"),
        ([entry("0-5"), entry("0-5", every=2)], "attention_plan[1].steps", "steps 0, 2, 4 are"),
        ([entry("0-6")], "attention_plan[0].steps", "0-6 is outside the 6 steps"),
        ([entry("5-0")], "attention_plan[0].steps", "ends before it begins"),
        ([entry("a")], "attention_plan[0].steps", "no range of steps"),
        ([entry("-1")], "attention_plan[0].steps", "no range of steps"),
        ([entry("0 - 5")], "attention_plan[0].steps", "no range of steps"),
        ([entry("0-5", every=0)], "attention_plan[0].every", "too small"),
        ([entry("0-5", every=True)], "attention_plan[0].every", "not a whole number"),
        ([{"steps": "0-5"}], "attention_plan[0].attention", "is missing"),
        ([entry("0-5", tau=1)], "attention_plan[0].tau", "not a field"),
        ({"steps": "0-5"}, "attention_plan", "not a list"),
        (None, "attention_plan", "null is not a value"),
    ],
)
def test_what_is_wrong_is_told_at_its_place(plan: Any, field: str, told: str) -> None:
    chosen, offences = judged(plan)
    assert chosen == () or field.endswith(".steps")
    assert offences.keys() == {field} and told in offences[field]


def test_a_plan_excludes_attention() -> None:
    _, offences = judged([entry("0-5")], attention="a")
    assert offences == {"attention_plan": "excludes attention"}


def test_without_a_plan_there_is_none() -> None:
    read = read_body({"prompt": "x"})
    assert judge_plan(read.body, Verdict(read)) == ()


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(2, 5), st.randoms())
def test_ranges_that_tile_the_steps_cover_each_once_in_any_order(sizes: list[int], every: int, random: Any) -> None:
    """Each range as one entry, or as every k-th step and the rest."""
    plan, first = [], 0
    for index, size in enumerate(sizes):
        steps = f"{first}-{first + size - 1}"
        if index % 2:
            plan.append([entry(steps, f"{index}a", every=every), entry(steps, f"{index}b")])
        else:
            plan.append([entry(steps, f"{index}a")])
        first += size
    random.shuffle(plan)
    chosen, offences = judged([item for items in plan for item in items], steps=first)
    assert not offences
    at = 0
    for index, size in enumerate(sizes):
        expected = [f"{index}{'b' if index % 2 and step % every else 'a'}" for step in range(size)]
        assert list(chosen[at : at + size]) == expected
        at += size

"""`attention_plan`: which attention backend runs each step.

An entry runs each `every`-th step of its range. What an entry with `every` above 1 leaves of its range is filled by the
next one. In the end each step 0..steps-1 has one backend: what two entries claim, what none does and what lies outside
is refused (service-contract, `attention_plan`).
"""

from __future__ import annotations

from collections.abc import Sequence

from h3runtime.api.request import GenerateBody, PlanBody
from h3runtime.api.rules.verdict import Verdict

FIELD = "attention_plan"


def judge_plan(body: GenerateBody, verdict: Verdict) -> tuple[str, ...]:
    """The backend of each step; empty without a plan. Whether the names can run here is `judge_backend`'s part."""
    if body.attention_plan is None:
        return ()
    if body.attention is not None:
        verdict.refuse(FIELD, "excludes attention", "one of the two")
    if "steps" in verdict.broken:
        return ()
    return _backends(body.attention_plan, body.steps, verdict)


def _backends(entries: Sequence[PlanBody], steps: int, verdict: Verdict) -> tuple[str, ...]:
    taken: dict[int, int] = {}
    left: set[int] = set()
    for index, entry in enumerate(entries):
        if entry.range.stop > steps:
            verdict.refuse(f"{FIELD}[{index}].steps", f"{entry.steps} is outside the {steps} steps", f"0..{steps - 1}")
            return ()
        wanted = set(entry.range[:: entry.every])
        if entry.every == 1:
            # The steps that an earlier entry runs in between are its own.
            wanted = {step for step in wanted if step not in taken or entries[taken[step]].every == 1} | left
            left = set()
        else:
            left |= set(entry.range) - wanted - taken.keys()
        if twice := sorted(wanted & taken.keys()):
            others = sorted({taken[step] for step in twice})
            told = (
                f"{_shown(twice)} {_is(twice)} run by {' and '.join(f'{FIELD}[{other}]' for other in others)} already"
            )
            verdict.refuse(f"{FIELD}[{index}].steps", told, "steps that no other entry runs")
        taken |= dict.fromkeys(sorted(wanted - taken.keys()), index)
        left -= wanted
    if missing := sorted(set(range(steps)) - taken.keys()):
        verdict.refuse(FIELD, f"{_shown(missing)} {_is(missing)} run by no entry", f"every step of 0..{steps - 1} once")
        return ()
    return tuple(entries[taken[step]].attention for step in range(steps))


def _shown(steps: Sequence[int]) -> str:
    listed = ", ".join(str(step) for step in steps[:5]) + (", ..." if len(steps) > 5 else "")
    return f"step {listed}" if len(steps) == 1 else f"steps {listed}"


def _is(steps: Sequence[int]) -> str:
    return "is" if len(steps) == 1 else "are"

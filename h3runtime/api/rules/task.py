"""Which task the inputs mean, and whether the stated one contradicts them."""

from __future__ import annotations

from h3runtime.api.request import BODIES, INPUTS, GenerateBody, infer_task, is_given
from h3runtime.api.rules.guides import guide_places
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import Task

NEEDED = {"first_frame": "a picture", "last_frame": "a picture", "references": "at least one reference"}
"""Input that a task may lack -> what would do."""


def judge_task(body: GenerateBody, frames: int, verdict: Verdict) -> Task:
    """The stated task, else what the inputs mean in a clip of F `frames`. A contradiction names `task` and the input.

    References make it ref2va; else guides at both ends fl2va, at the last frame only l2va, any others i2va.
    """
    at = guide_places(body, frames).values()
    first, last = 0 in at, frames - 1 in at
    inferred = infer_task(references=bool(body.references), guides=bool(at), first=first, last=last)
    if body.task is None:
        return inferred
    stated = Task(body.task)
    strangers = [name for name in INPUTS if name in BODIES[stated].excluded and is_given(body, name)]
    lacking = _lacking(stated, body, first, last) if _are_known(body, verdict) else []
    if not strangers and not lacking:
        return stated
    verdict.refuse("task", f"{body.task!r} contradicts the inputs given", f"{inferred.value!r}, or leave it out")
    for name in lacking:
        verdict.refuse(name, f"is needed by task {body.task!r}", NEEDED[name])
    for name in strangers:
        verdict.refuse(name, f"is no input of task {body.task!r}", f"none, or task {inferred.value!r}")
    return inferred


def _lacking(stated: Task, body: GenerateBody, first: bool, last: bool) -> list[str]:
    """The usual field of each input that the task needs and that no guide or reference is."""
    guided = any(is_given(body, name) for name in INPUTS if name != "references")
    lacks = {
        "first_frame": (stated is Task.I2VA and not guided) or (stated is Task.FL2VA and not first),
        "last_frame": stated in (Task.L2VA, Task.FL2VA) and not last,
        "references": stated is Task.REF2VA and not body.references,
    }
    return [name for name, is_lacking in lacks.items() if is_lacking]


def _are_known(body: GenerateBody, verdict: Verdict) -> bool:
    """Where an input is broken, or a keyframe may be at the end of an unknown length, nothing can be called lacking."""
    return not verdict.broken & set(INPUTS) and not (body.keyframes and "frames" in verdict.broken)

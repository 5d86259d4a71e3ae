"""A quality level beside everything else that a request says."""

from __future__ import annotations

from typing import Any

import pytest

from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_backends, judge_levels, judge_quality, levelled
from h3runtime.api.rules.reuse import reuse_of
from h3runtime.core import StepReuse, Task
from h3runtime.packing.geometry import Size
from h3runtime.quality.evidence import Evidence
from h3runtime.quality.levels import Choice
from h3runtime.quality.shelf import Held
from tests.quality.made import FACTS, evidence

REUSING = evidence(level="medium", choice=Choice("sage2", "int8", "easycache", 0.25))
HELD = Held((evidence(), REUSING))
SMALL = {"prompt": "x", "steps": 8}


def judged(held: Held = HELD, frames: int = 22, **fields: Any) -> tuple[Evidence | None, dict[str, str]]:
    read = read_body({**SMALL, **fields})
    verdict = Verdict(read)
    judge_levels(read.body, verdict)
    judge_backends(read.body, FACTS, verdict)
    found = judge_quality(read.body, Task.T2VA, Size(128, 128), frames, FACTS, held, verdict)
    return found, {offence.field: offence.message for offence in (*read.offences, *verdict.offences)}


@pytest.mark.parametrize(
    "fields",
    [
        {"quality": "high"},
        {"quality": "high", "attention": "sage2", "linear": "int8", "cache_mode": "none"},
        {"quality": "high", "attention_plan": [{"steps": "0-7", "attention": "sage2"}]},
        {"quality": "medium", "linear": "int8"},
        {"quality": "high", "loras": [{"name": "x", "strength": 0}]},
    ],
)
def test_what_says_the_same_may_stand_beside_a_level(fields: dict[str, Any]) -> None:
    found, offences = judged(**fields)
    assert offences == {} and found in HELD.own and found.level == fields["quality"]


@pytest.mark.parametrize("fields", [{}, {"quality": "exact"}])
def test_no_level_needs_no_evidence(fields: dict[str, Any]) -> None:
    assert judged(Held(), **fields) == (None, {})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"quality": "high", "attention": "sdpa"}, "attention"),
        ({"quality": "high", "linear": "dequant"}, "linear"),
        ({"quality": "high", "attention_plan": [{"steps": "0-7", "attention": "sdpa"}]}, "attention_plan[0].attention"),
        ({"quality": "high", "cache_mode": "easycache"}, "cache_mode"),
        ({"quality": "medium", "cache_mode": "none"}, "cache_mode"),
        ({"quality": "medium", "cache_mode": "easycache", "cache_threshold": 0.25}, "cache_mode"),
        ({"quality": "medium", "cache_threshold": 0.25}, "cache_threshold"),
    ],
)
def test_what_says_otherwise_contradicts_it(fields: dict[str, Any], field: str) -> None:
    _, offences = judged(**fields)
    assert offences.keys() == {field}
    assert "contradicts quality" in offences[field] or "does nothing" in offences[field]


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"loras": [{"name": "x"}]}, "loras"), ({"refine": {"scale": 2}}, "refine")],
)
def test_what_nobody_measured_is_refused_beside_a_level(fields: dict[str, Any], field: str) -> None:
    _, offences = judged(quality="high", **fields)
    assert "measured without" in offences[field]


def test_without_evidence_the_refusal_has_the_command() -> None:
    _, offences = judged(Held(), quality="high", scheduler="simple", audio_shift=4)
    command = "h3runtime calibrate --prompts FILE --level high --size 128x128x22 --steps 8"
    assert f"{command} --scheduler simple --audio-shift 4.0" in offences["quality"]
    _, offences = judged(quality="low")
    assert "no evidence of 'low' for the loaded checkpoint" in offences["quality"]
    _, offences = judged(quality="high", frames=39)
    assert "16384 to 32767 pixels, 32 to 63 frames" in offences["quality"] and "128x128x39" in offences["quality"]


def test_evidence_for_its_size_is_asked_of_a_sound_request_only() -> None:
    _, offences = judged(quality="high", frames=39, attention="fa4")
    assert offences.keys() == {"attention"}
    _, offences = judged(Held(), quality="high", attention="fa4")
    assert offences.keys() == {"attention", "quality"}


def test_a_level_chooses_for_the_request() -> None:
    body = levelled(read_body({**SMALL, "quality": "medium"}).body, REUSING)
    chosen = judge_backends(body, FACTS, Verdict(read_body(SMALL)))
    assert (chosen.attention, chosen.linear) == ("sage2", "int8")
    assert reuse_of(body) == StepReuse("easycache", 0.25)
    plain = read_body(SMALL).body
    assert levelled(plain, None) is plain and reuse_of(plain) is None

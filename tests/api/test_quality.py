"""Quality levels of a service: the job that asks for one, and what `/ready` says of them. No server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from h3runtime.api.answers import JobAnswer, job_answer
from h3runtime.api.health import QualityAnswer, quality_answer
from h3runtime.core import StepReuse
from h3runtime.jobs.job import Job
from h3runtime.jobs.rows import job_of, spec_text, state_text
from h3runtime.quality.bucket import Bucket
from h3runtime.quality.evidence import write_evidence
from h3runtime.quality.levels import Choice
from h3runtime.quality.shelf import Held
from tests.api.desk import Desk, open_desk
from tests.quality.made import FACTS, evidence

TINY = {"width": 64, "height": 64, "frames": 5, "steps": 4}


def measured(**changes: Any) -> Any:
    return evidence(bucket=Bucket.of(*TINY.values()), **TINY, **changes)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return replace(open_desk(tmp_path, monkeypatch), facts=FACTS)


def test_a_level_chooses_and_the_job_says_so(desk: Desk, tmp_path: Path) -> None:
    assert "no evidence of 'medium'" in desk.offences(**TINY, quality="medium")["quality"].message
    made = measured(level="medium", choice=Choice("sage2", "int8", "h3_cache", 0.1))
    write_evidence(tmp_path / "data" / "quality", made)
    spec = desk.spec(**TINY, quality="medium")
    assert (spec.attention, spec.linear, spec.reuse) == ("sage2", "int8", StepReuse("h3_cache", 0.1))
    answer = job_answer(Job(spec))
    assert (answer["quality"], answer["evidence"]["id"]) == ("medium", made.id)
    assert JobAnswer.model_validate(answer, strict=True).evidence == answer["evidence"]
    assert job_answer(job_of(spec_text(spec), state_text(Job(spec))))["evidence"] == answer["evidence"]
    assert desk.offences(**TINY, quality="medium", linear="dequant").keys() == {"linear"}
    assert desk.spec(**TINY).evidence is None and desk.spec(**TINY, quality="exact").evidence is None


def test_ready_lists_levels_with_their_evidence() -> None:
    other = measured(choice=Choice("sage2", "fp8"))
    told = quality_answer(FACTS, Held((measured(),), (other, evidence(device="cuda"))))
    for answer in told.values():
        QualityAnswer.model_validate(answer, strict=True)
    assert told["exact"] == {"available": True, "reason": "", "evidence": None}
    assert told["high"]["available"] and told["high"]["reason"] == ""
    rows = told["high"]["evidence"]["measured"]
    assert [(row["id"], row["unusable"]) for row in rows] == [
        (measured().id, ""),
        (other.id, "linear fp8: not loaded for"),
    ]
    assert told["low"]["evidence"] is None and "h3runtime calibrate" in told["low"]["reason"]


def test_a_level_that_can_not_run_is_told_with_the_reason() -> None:
    told = quality_answer(FACTS, Held((measured(choice=Choice("fa4", "int8")),)))["high"]
    assert (told["available"], told["reason"]) == (False, "attention fa4: no")
    assert not quality_answer(None, Held((measured(),)))["high"]["available"]
    inexact = replace(FACTS, linear=replace(FACTS.linear, available=("int8",)))
    assert "nothing exact" in quality_answer(inexact, Held())["exact"]["reason"]

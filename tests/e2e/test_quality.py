"""Quality levels of a server on the embedded model, whose evidence the package has: asked for, refused, and told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.quality.bucket import Bucket
from h3runtime.quality.evidence import Evidence
from h3runtime.quality.shelf import FOLDER, Shelf
from h3runtime.settings import Settings
from tests.api.server import Running, running

MEASURED = {"prompt": "a red ball moves right", "width": 128, "height": 128, "frames": 22, "steps": 8, "seed": 5}
"""In the bucket of the package's evidence."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    settings = Settings(data_dir=folder, device="cpu", disk_floor_bytes=0)
    with running(folder, recipe=EngineRecipe("h3runtime.engine:create", (settings, 1)), device="cpu") as found:
        yield found


def packaged(level: str) -> Evidence:
    asked = (level, "cpu", "fl2va", Bucket.of(128, 128, 22, 8))
    (found,) = (e for e in Shelf(Path("nowhere")).held.packed if (e.level, e.device, e.partition, e.bucket) == asked)
    return found


def asked(server: Running, path: str = "/generate", **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = server.client.post(path, json=MEASURED | fields)
    return answer.status_code, answer.json()


def test_a_job_tells_its_level_and_evidence_and_keeps_its_choice(server: Running) -> None:
    medium = packaged("medium")
    status, job = asked(server, quality="medium", n=2)
    assert (status, job["status"], job["quality"]) == (200, "succeeded", "medium"), job
    assert job["evidence"]["id"] == medium.id and job["evidence"]["ssim"]["bound"] >= 0.90
    assert (job["attention"], job["linear"]) == (medium.choice.attention, medium.choice.linear)
    assert job["forwards"] + job["skipped_steps"] == 8 and job["skipped_steps"] > 0
    assert [output["seed"] for output in job["outputs"]] == ["5", "6"]
    again = server.job(job["id"])
    assert (again["quality"], again["evidence"]) == ("medium", job["evidence"])


def test_what_a_level_chooses_is_what_its_fields_would_make(server: Running) -> None:
    fields = packaged("medium").choice.fields()
    jobs = [asked(server, **more)[1] for more in ({"quality": "medium"}, fields)]
    assert jobs[0]["sha256"] == jobs[1]["sha256"] and jobs[0]["skipped_steps"] == jobs[1]["skipped_steps"]
    assert (jobs[1]["quality"], jobs[1]["evidence"]) == (None, None)


def test_ready_tells_what_was_measured(server: Running) -> None:
    levels = server.client.get("/ready").json()["quality"]
    assert list(levels) == ["exact", "high", "medium", "low"] and all(level["available"] for level in levels.values())
    for level in ("high", "medium", "low"):
        rows = {row["bucket"]: row for row in levels[level]["evidence"]["measured"]}
        row = rows["16384px-16f-8s"]
        assert row["id"] == packaged(level).id and row["unusable"] == "" and (row["prompts"], row["seeds"]) == (16, 2)


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"width": 256}, "quality", "h3runtime calibrate --prompts FILE --level medium --size 256x128x22 --steps 8"),
        ({"steps": 16}, "quality", "--size 128x128x22 --steps 16"),
        ({"shift": 6}, "quality", "--steps 8 --shift 6.0"),
        ({"cache_mode": "first_block"}, "cache_mode", "contradicts quality 'medium'"),
        ({"cache_mode": "none"}, "cache_mode", "contradicts quality 'medium'"),
        ({"linear": "fp32"}, "linear", "contradicts quality 'medium'"),
        ({"attention": "sla_topk_50"}, "attention", "contradicts quality 'medium'"),
        (
            {"attention_plan": [{"steps": "0-7", "attention": "sla_topk_50"}]},
            "attention_plan[0].attention",
            "contradicts quality 'medium'",
        ),
        ({"refine": {"scale": 2}}, "refine", "measured without"),
    ],
)
def test_what_no_evidence_speaks_for_is_refused(server: Running, fields: dict[str, Any], field: str, told: str) -> None:
    status, problem = asked(server, quality="medium", **fields)
    assert (status, problem["code"]) == (422, "invalid_request")
    assert told in {error["field"]: error["message"] for error in problem["errors"]}[field]


def test_an_estimate_counts_with_the_level(server: Running) -> None:
    status, plain = asked(server, "/estimate")
    assert (status, plain["forwards"]) == (200, 8)
    status, medium = asked(server, "/estimate", quality="medium")
    assert status == 200 and medium["admitted"] and medium["forwards"] < 8
    assert asked(server, "/estimate", quality="medium", width=256)[0] == 422


def test_a_damaged_file_is_told_and_counts_for_nothing(server: Running, folder: Path) -> None:
    (folder / FOLDER).mkdir()
    (folder / FOLDER / "medium.json").write_text('{"kind": "h3runtime quality evidence 1"}')
    assert asked(server, "/estimate", quality="medium")[0] == 200
    ready = server.client.get("/ready").json()
    assert any("medium.json" in warning and "calibrate again" in warning for warning in ready["warnings"])
    assert ready["quality"]["medium"]["available"]

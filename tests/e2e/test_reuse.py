"""`cache_mode` and its fields over HTTP: a server on the embedded model, whose answers change as a trained one's do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from h3runtime.core import REUSE_SUBSAMPLE, REUSE_THRESHOLDS, REUSE_WINDOW
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.settings import Settings
from tests.api.server import Running, running

SMALL = {"prompt": "a red ball moves right", "width": 64, "height": 64, "frames": 5, "steps": 10, "seed": 5}
MODES = pytest.mark.parametrize("mode", REUSE_THRESHOLDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    settings = Settings(data_dir=folder, device="cpu", disk_floor_bytes=0)
    with running(folder, recipe=EngineRecipe("h3runtime.engine:create", (settings, 1)), device="cpu") as found:
        yield found


def made(server: Running, **fields: Any) -> dict[str, Any]:
    answer = server.client.post("/generate", json=SMALL | {"diagnostics": True} | fields)
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    assert job["status"] == "succeeded", job["error"]
    return job


@MODES
def test_a_job_tells_what_was_spared_and_why(server: Running, mode: str) -> None:
    job = made(server, cache_mode=mode, cache_threshold=3)
    told = job["diagnostics"]["reuse"]
    assert 0 < job["skipped_steps"] == len(told["skipped"]) == 10 - job["forwards"]
    assert (told["mode"], told["threshold"], told["subsample"]) == (mode, 3, REUSE_SUBSAMPLE)
    assert (told["start"], told["end"]) == REUSE_WINDOW and told["forecast"] == "taylor"
    assert {str(step) for step in told["skipped"]} <= told["changes"].keys()
    assert all(max(told["changes"][str(step)]) < 3 for step in told["skipped"])


@MODES
def test_each_field_arrives(server: Running, mode: str) -> None:
    whole = {"cache_start_percent": 0, "cache_end_percent": 1}
    fields = {"cache_mode": mode, "cache_threshold": 2.5, "cache_subsample_factor": 2, **whole}
    told = made(server, **fields)["diagnostics"]["reuse"]
    assert (told["threshold"], told["subsample"], told["start"], told["end"]) == (2.5, 2, 0, 1)
    default = made(server, cache_mode=mode)["diagnostics"]["reuse"]
    assert default["threshold"] == REUSE_THRESHOLDS[mode]  # type: ignore[index]
    late = made(server, **fields | {"cache_start_percent": 0.6})["diagnostics"]["reuse"]
    assert min(late["skipped"]) > min(told["skipped"])


@MODES
def test_a_threshold_of_nothing_is_the_clip_without(server: Running, mode: str) -> None:
    plain, nothing = made(server), made(server, cache_mode=mode, cache_threshold=0)
    assert nothing["sha256"] == plain["sha256"] and nothing["skipped_steps"] == 0 and nothing["forwards"] == 10
    assert nothing["diagnostics"]["latents_sha256"] == plain["diagnostics"]["latents_sha256"]


def test_each_forecast_makes_another_clip(server: Running) -> None:
    fields = {"cache_mode": "h3_cache", "cache_threshold": 3}
    jobs = [made(server, **fields, cache_forecast=name) for name in ("taylor", "hold", "delta")]
    assert len({job["diagnostics"]["latents_sha256"] for job in jobs}) == 3
    assert all(job["skipped_steps"] > 0 for job in jobs)
    assert jobs[0]["sha256"] == made(server, **fields)["sha256"]

"""What a request would take: the same judgement as for a job, nothing queued and nothing kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.server import HELD, SMALL, Running, picture, running

FIELDS = """task width height frames seconds rows forwards predicted_seconds predicted_peak_bytes capacity_bytes memory
    disk queue admitted reason would_fit warnings"""


def estimate(server: Running, body: dict[str, Any], method: str = "POST") -> Any:
    return server.client.request(method, "/estimate", json=body)


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_an_estimate_tells_sizes_and_whether_it_fits(server: Running, method: str) -> None:
    answer = estimate(server, {**SMALL, "aspect_ratio": "1:1", "short_edge": 256, "width": 256, "height": 256}, method)
    told = answer.json()
    assert answer.status_code == 200, answer.text
    assert told.keys() == set(FIELDS.split())
    assert (told["task"], told["width"], told["height"], told["frames"]) == ("t2va", 256, 256, 5)
    assert (told["admitted"], told["reason"]) == (True, None)
    assert told["rows"]["total"] == sum(rows for kind, rows in told["rows"].items() if kind != "total")
    assert 0 < told["predicted_peak_bytes"] <= told["capacity_bytes"]
    assert 0 < told["disk"]["needed_bytes"] < told["disk"]["free_bytes"]
    assert told["queue"]["limit"] == 16


def test_nothing_of_it_is_queued_or_kept(server: Running) -> None:
    before = server.client.get("/jobs").json()
    body = json.dumps({**SMALL, "first_frame": {"upload": "a"}})
    answer = server.client.post("/estimate", files={"request": (None, body), "a": ("a", picture(64, 64))})
    assert (answer.status_code, answer.json()["task"]) == (200, "i2va")
    assert server.client.get("/jobs").json() == before
    folders = server.service.folders
    assert not any("estimate" in path.name for path in folders.outputs.parent.rglob("*"))
    assert not list(folders.tmp.glob("upload-*"))


def test_a_bad_request_is_one_here_too(server: Running) -> None:
    bad = {**SMALL, "steps": 0, "frames": 81, "attention": "x"}
    answer = estimate(server, bad)
    assert answer.status_code == 422
    assert {error["field"] for error in answer.json()["errors"]} == server.offenders(bad).keys()
    assert server.client.post("/estimate", content=b"{").status_code == 415
    broken = server.client.post("/estimate", content=b"{", headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["code"]) == (400, "malformed_request")
    assert server.client.get("/estimate").json()["code"] == "media_type"


def test_what_does_not_fit_into_memory_is_told_and_refused(server: Running) -> None:
    body = {**SMALL, "prompt": "x peak=99999999999"}
    told = estimate(server, body).json()
    assert (told["admitted"], told["reason"]["code"]) == (False, "out_of_memory_predicted")
    assert told["predicted_peak_bytes"] > told["capacity_bytes"]
    assert told["would_fit"] and told["would_fit"] in told["reason"]["message"]
    answer = server.post(body)
    assert (answer.status_code, answer.json()["code"]) == (422, "out_of_memory_predicted")
    assert str(told["capacity_bytes"]) in answer.json()["detail"]
    assert answer.json()["errors"][0]["legal"] == told["would_fit"]


def test_a_full_disk_is_told_and_refused(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = estimate(server, SMALL).json()["disk"]["needed_bytes"]
    monkeypatch.setattr(server.service.folders, "free_bytes", lambda: needed - 1)
    told = estimate(server, SMALL).json()
    assert (told["admitted"], told["reason"]["code"], told["disk"]["free_bytes"]) == (False, "disk_full", needed - 1)
    answer = server.post(SMALL)
    assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
    assert int(answer.headers["retry-after"]) > 0
    monkeypatch.setattr(server.service.folders, "free_bytes", lambda: needed)
    assert estimate(server, SMALL).json()["admitted"] is True


def test_a_taken_name_is_told(server: Running) -> None:
    server.post({**SMALL, "output": "owned.mp4"})
    told = estimate(server, {**SMALL, "output": "owned.mp4"}).json()
    assert (told["admitted"], told["reason"]["code"]) == (False, "output_exists")
    assert estimate(server, {**SMALL, "output": "owned.mp4", "overwrite": True}).json()["admitted"] is True


def test_it_works_while_a_job_computes_and_tells_a_full_queue(tmp_path: Path) -> None:
    with running(tmp_path, queue_limit=1) as server:
        server.wait(server.submit(**HELD), "running")
        assert estimate(server, SMALL).json()["admitted"] is True
        server.submit(**HELD)
        told = estimate(server, SMALL).json()
        assert (told["admitted"], told["reason"]["code"]) == (False, "queue_full")
        assert told["queue"]["waiting"] == 1


def test_seconds_are_predicted_once_there_is_a_history(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for frames in (5, 22, 39, 5, 22):
            assert server.post({**SMALL, "frames": frames}).json()["status"] == "succeeded"
        told = estimate(server, SMALL).json()
        assert told["predicted_seconds"]["total"] > 0
        assert told["queue"]["eta_seconds"] == 0


def test_what_a_clip_may_write_grows_with_what_is_asked_for(server: Running) -> None:
    def needed(**fields: Any) -> int:
        return int(estimate(server, {**SMALL, **fields}).json()["disk"]["needed_bytes"])

    plain = needed()
    assert plain < needed(n=2) < needed(n=3)
    assert needed(frames=22) > plain and needed(width=128) > plain and needed(save_latents=True) > plain
    assert needed(diagnostics={"latents": True}) > needed(save_latents=True)
    assert needed(format={"crf": 0}) > plain

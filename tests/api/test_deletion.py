"""DELETE: the job, its row and every file of it go, whatever it was doing."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.api.server import HELD, PATIENCE, SMALL, Running, picture


def files_of(server: Running, job_id: str) -> list[Path]:
    """Everything below the data folder that names the job."""
    folders = server.service.folders
    return [path for path in folders.outputs.parent.rglob("*") if job_id in path.name]


@pytest.mark.parametrize("way", ["succeeded", "failed", "cancelled", "running", "queued"])
def test_a_job_goes_with_all_that_belongs_to_it(server: Running, way: str) -> None:
    blocker = server.submit(**HELD) if way == "queued" else ""
    prompt = {"failed": "fail_at=mux", "succeeded": "x"}.get(way, "x hold")
    request = {**SMALL, "prompt": prompt, "n": 2}
    body = json.dumps({**request, "first_frame": {"upload": "a"}, "save_latents": True})
    files = {"request": (None, body), "a": ("a", picture(64, 64))}
    job = server.client.post("/generate", files=files, headers={"Prefer": "respond-async"}).json()["id"]
    if way == "cancelled":
        server.wait(job, "running")
        server.client.post(f"/jobs/{job}/cancel")
    server.wait(job, way)
    answer = server.client.delete(f"/jobs/{job}")
    last = {"running": "cancelled", "queued": "cancelled"}.get(way, way)
    assert (answer.status_code, answer.json()["id"], answer.json()["status"]) == (200, job, last)
    for method, path in (("GET", ""), ("GET", "/content"), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")):
        gone = server.client.request(method, f"/jobs/{job}{path}")
        assert (gone.status_code, gone.json()["code"]) == (404, "job_not_found")
    assert job not in [item["id"] for item in server.client.get("/jobs").json()["data"]]
    assert files_of(server, job) == []
    if blocker:
        server.client.delete(f"/jobs/{blocker}")
    assert server.post(SMALL).json()["status"] == "succeeded"


def test_a_delete_wins_against_the_end(server: Running) -> None:
    """Deleted around the moment of its end, a job is gone either way, its clip too."""
    took = min(server.post(SMALL).elapsed.total_seconds() for _ in range(3))
    for attempt in range(20):
        name = f"race-{attempt}.mp4"
        job = server.submit(output=name)
        time.sleep(took * attempt / 15)
        assert server.client.delete(f"/jobs/{job}").status_code == 200
        assert server.client.get(f"/jobs/{job}").status_code == 404
        assert not (server.service.folders.outputs / name).exists()
    assert server.post(SMALL).json()["status"] == "succeeded"


def test_two_deletes_at_once_both_end(server: Running) -> None:
    job = server.submit(**HELD)
    server.wait(job, "running")
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(server.client.delete(f"/jobs/{job}").status_code))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(statuses) <= {200, 404} and 200 in statuses and len(statuses) == 4


def test_its_name_is_free_again(server: Running) -> None:
    first = server.post({**SMALL, "output": "again.mp4"}).json()
    assert server.post({**SMALL, "output": "again.mp4"}).status_code == 409
    server.client.delete(f"/jobs/{first['id']}")
    assert server.post({**SMALL, "output": "again.mp4"}).status_code == 200


def test_a_cancel_answers_with_the_job_at_any_time(server: Running) -> None:
    done = server.post(SMALL).json()
    answer = server.client.post(f"/jobs/{done['id']}/cancel")
    assert (answer.status_code, answer.json()) == (200, done)
    queued = [server.submit(**HELD) for _ in range(2)][1]
    for _ in range(2):
        answer = server.client.post(f"/jobs/{queued}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert answer.json()["started_at"] is None and answer.json()["finished_at"] is not None
    for job in server.client.get("/jobs").json()["data"]:
        if job["status"] in ("queued", "running"):
            server.client.delete(f"/jobs/{job['id']}")

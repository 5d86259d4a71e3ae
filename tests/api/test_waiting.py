"""How long a client is kept waiting: `Prefer`, clients that leave, jobs that are deleted, a server that drains."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from h3runtime.api.routes.prefer import preference_of
from tests.api.raw import connect
from tests.api.server import HELD, PATIENCE, SMALL, Running, running, until


@pytest.mark.parametrize(
    ("headers", "seconds", "applied"),
    [
        ([], None, ""),
        (["respond-async"], 0, "respond-async"),
        (["Respond-Async"], 0, "respond-async"),
        (["wait=5"], 5, "wait=5"),
        (['wait="5"'], 5, "wait=5"),
        (["wait = 007"], 7, "wait=7"),
        (["respond-async, wait=3"], 3, "wait=3"),
        (["respond-async", "wait=3"], 3, "wait=3"),
        (["wait=3; foo=bar, wait=9"], 3, "wait=3"),
        (["wait=99999999999999999999"], 10**6, "wait=999999999999"),
        (["return=minimal"], None, ""),
        (["wait=soon"], None, ""),
        (["wait=-1"], None, ""),
        (["wait=1.5"], None, ""),
        (["wait=٣"], None, ""),
    ],
)
def test_a_preference_is_read_as_the_standard_has_it(headers: list[str], seconds: float | None, applied: str) -> None:
    preference = preference_of(headers)
    assert (preference.seconds, preference.applied) == (seconds, applied)


def test_what_was_heeded_is_told(server: Running) -> None:
    answer = server.client.post("/generate", json=HELD, headers={"Prefer": "respond-async"})
    job = answer.json()
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async")
    assert answer.headers["location"] == f"/jobs/{job['id']}" and int(answer.headers["retry-after"]) > 0
    assert (job["width"], job["frames"], job["seconds"]) == (64, 5, 5 / 24)
    server.client.post(f"/jobs/{job['id']}/cancel")
    answer = server.client.post("/generate", json=SMALL, headers={"Prefer": "wait=50"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=50")
    assert "retry-after" not in answer.headers
    assert "preference-applied" not in server.post(SMALL).headers


def test_a_client_that_leaves_is_waited_for_no_more_and_its_job_goes_on(server: Running) -> None:
    """A33, A37: no watcher and no task of it is left."""
    text = json.dumps({**HELD, "output": "unwatched.mp4"}).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    with connect(server.url) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + text)
        newest = until(lambda: _newest(server, "unwatched.mp4"))
        until(lambda: newest["id"] in watched(server))
    until(lambda: newest["id"] not in watched(server))
    assert server.job(newest["id"])["status"] in ("queued", "running")
    server.client.delete(f"/jobs/{newest['id']}")


def test_a_timeout_that_meets_the_end_harms_nobody_two_hundred_times(server: Running) -> None:
    """A34."""
    took = min(server.post(SMALL).elapsed.total_seconds() for _ in range(3))
    text = json.dumps(SMALL).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    for attempt in range(200):
        with connect(server.url) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + text)
            time.sleep(took * (0.5 + attempt % 20 / 20))
    until(lambda: not server.service.table.live())
    assert server.post(SMALL).json()["status"] == "succeeded"
    assert watched(server) == set()


def test_who_waits_for_a_job_that_is_deleted_is_told(server: Running) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(server.post({**HELD, "output": "doomed.mp4"})))
    waiting.start()
    job = until(lambda: _newest(server, "doomed.mp4"))
    assert server.client.delete(f"/jobs/{job['id']}").status_code == 200
    waiting.join(PATIENCE)
    assert (answers[0].status_code, answers[0].json()["code"]) == (404, "job_not_found")


def test_clients_that_wait_are_let_go_when_the_server_drains(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        answers: dict[str, Any] = {}
        threads = [
            threading.Thread(
                target=lambda name=name: answers.update({name: server.post({**HELD, "output": name})}), name=name
            )
            for name in ("first.mp4", "second.mp4")
        ]
        for thread in threads:
            thread.start()
            until(lambda name=thread.name: _newest(server, name))
        server.service.supervisor.drain(0.2)
        for thread in threads:
            thread.join(PATIENCE)
        assert {answer.status_code for answer in answers.values()} == {202}
        assert {answer.json()["status"] for answer in answers.values()} == {"queued"}


def watched(server: Running) -> set[str]:
    """Jobs that somebody waits for."""
    return set(server.service.table._ends._rings)


def _newest(server: Running, output: str) -> dict[str, Any] | None:
    return next((job for job in server.client.get("/jobs").json()["data"] if job["output"] == output), None)

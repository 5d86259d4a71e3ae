"""A job's events as they happen: first how it is, then what comes, resumed after a break, ended with the job."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import ClientDisconnect

from h3runtime.api.app import create_app
from tests.api.server import HELD, PATIENCE, SMALL, Running, running, until

SLOW = {**SMALL, "prompt": "x step_seconds=0.02", "steps": 40}
TELLING = {**SMALL, "prompt": "x step_seconds=0.02 hold"}
"""Goes on telling its last step until it is told to stop."""


def lines_of(answer: httpx2.Response) -> Iterator[dict[str, str]]:
    """Each event or hint of a stream; comments under ""."""
    event: dict[str, str] = {}
    for line in answer.iter_lines():
        if not line:
            if event:
                yield event
            event = {}
            continue
        name, _, value = line.partition(":")
        event[name] = value.strip()
    if event:
        yield event


def events(server: Running, job: str, last: str | None = None) -> Iterator[dict[str, Any]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with server.client.stream("GET", f"/jobs/{job}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        for event in lines_of(answer):
            if "data" in event:
                yield {**event, "data": json.loads(event["data"])}


def test_a_stream_tells_a_job_from_its_state_to_its_end(server: Running) -> None:
    job = server.submit(**SLOW)
    told = list(events(server, job))
    assert [event["event"] for event in told[:2]] == ["state", "progress"]
    assert told[0]["data"]["status"] in ("queued", "running")
    assert (told[-1]["event"], told[-1]["data"]["status"]) == ("state", "succeeded")
    ids = [int(event["id"]) for event in told]
    assert ids == sorted(set(ids))
    progress = [event["data"] for event in told if event["event"] == "progress"]
    assert all({"stage", "step", "steps", "fraction", "eta_seconds"} <= data.keys() for data in progress)
    fractions = [data["fraction"] for data in progress]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    assert len({data["step"] for data in progress if data["stage"] == "sampling"}) > 30


def test_a_broken_stream_goes_on_where_it_broke(server: Running) -> None:
    job = server.submit(**SLOW)
    first = []
    for event in events(server, job):
        first.append(event)
        if len(first) == 8:
            break
    rest = list(events(server, job, first[-1]["id"]))
    # From the progress of the beginning on: between its state and that there may have been more.
    ids = [int(event["id"]) for event in (first + rest)[1:]]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert rest[-1]["data"]["status"] == "succeeded"


@pytest.mark.parametrize("last", ["0", "999999999", "-1", "x", "", "9" * 40, "٣"])
def test_an_id_that_means_nothing_gets_the_state(server: Running, last: str) -> None:
    job = server.post(SMALL).json()
    headers = [(b"Last-Event-ID", last.encode())]
    with server.client.stream("GET", f"/jobs/{job['id']}/events", headers=headers) as answer:
        told = list(lines_of(answer))
    assert json.loads(told[-1]["data"])["status"] == "succeeded"


def test_a_job_that_has_ended_tells_so_and_the_stream_ends(server: Running) -> None:
    job = server.post(SMALL).json()["id"]
    told = list(events(server, job))
    assert [event["data"]["status"] for event in told if event["event"] == "state"] == ["succeeded"]
    assert list(events(server, job, told[-1]["id"]))[-1]["data"]["status"] == "succeeded"


@pytest.mark.parametrize(("way", "status"), [("cancel", "cancelled"), ("delete", "")])
def test_a_stream_ends_with_a_cancel_or_a_deletion(server: Running, way: str, status: str) -> None:
    job = server.submit(**HELD)
    told: list[dict[str, Any]] = []
    stream = threading.Thread(target=lambda: told.extend(events(server, job)))
    stream.start()
    server.wait(job, "running")
    until(lambda: told)
    if way == "cancel":
        server.client.post(f"/jobs/{job}/cancel")
    else:
        assert server.client.delete(f"/jobs/{job}").status_code == 200
    stream.join(PATIENCE)
    assert not stream.is_alive()
    states = [event["data"]["status"] for event in told if event["event"] == "state"]
    assert (states[-1] == status) if status else "succeeded" not in states


def test_streams_of_other_jobs_are_not_found(server: Running) -> None:
    answer = server.client.get("/jobs/01J00000000000000000000000/events")
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")


def test_a_client_that_leaves_a_stream_leaves_nothing(server: Running) -> None:
    job = server.submit(**TELLING)
    for _ in range(5):
        with server.client.stream("GET", f"/jobs/{job}/events") as answer:
            next(lines_of(answer))
    until(lambda: not server.service.table._events._rings)
    server.client.delete(f"/jobs/{job}")


def test_a_client_that_leaves_while_it_is_told_leaves_nothing(server: Running) -> None:
    """It reads nothing after the first event, when more are at hand, and goes. Nothing waits for a collection."""
    job = server.submit(**TELLING)
    server.wait(job, "running")

    async def leave() -> None:
        told = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await told.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                # By now the next ones wait for room.
                await asyncio.sleep(0.2)
                told.set()
                await asyncio.Event().wait()

        path = f"/jobs/{job}/events"
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        with suppress(ClientDisconnect):
            await create_app(server.service)(
                scope | {"headers": [(b"host", b"x")], "http_version": "1.1"}, receive, send
            )

        # Before the loop ends, which would tidy up.
        for _ in range(600):
            left[:] = [each for each in server.service.table._events._rings if each == job]
            if not left:
                return
            await asyncio.sleep(0.05)

    left: list[str] = []
    gc.disable()
    try:
        asyncio.run(leave())
    finally:
        gc.enable()
    assert not left
    server.client.delete(f"/jobs/{job}")


def test_a_drain_ends_streams_with_a_hint(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        job = server.submit(**HELD)
        told: list[dict[str, str]] = []

        def follow() -> None:
            with server.client.stream("GET", f"/jobs/{job}/events") as answer:
                told.extend(lines_of(answer))

        stream = threading.Thread(target=follow)
        stream.start()
        server.wait(job, "running")
        until(lambda: told)
        server.service.queue.close()
        stream.join(PATIENCE)
        assert not stream.is_alive()
        assert int(told[-1]["retry"]) > 0


def test_a_quiet_stream_shows_that_it_lives(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.05)
    job = server.submit(**HELD)
    with server.client.stream("GET", f"/jobs/{job}/events") as answer:
        assert any(": ping" in line for line in answer.iter_lines())
    server.client.delete(f"/jobs/{job}")

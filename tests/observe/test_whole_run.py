"""The log of a whole server, its engine's lines included: what is always told, and what never is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.faults.service import SMALL, Service, look

BLABBING = "tests.observe.blabbing_engine:create"
KEY, WRONG_KEY = "planted-key-4711", "planted-guess-0815"
PROMPT, SECOND = 'a "dragon" blab\nunder the zebra café', "a quiet walrus"
ALWAYS = {
    "job_id", "request_id", "output", "seed", "attention", "linear", "width", "height", "frames", "steps", "timings",
}  # fmt: skip


class Run:
    """A server, what it answered, and every line it wrote."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        (folder / "data").mkdir(parents=True)
        self.folder = folder
        service = Service(folder, BLABBING, environment={"H3_API_KEY": KEY}, log_file=folder / "h3.log", **settings)
        try:
            self._ask(service)
        finally:
            service.stop()
        self.lines = service.log
        self.text = service.log_file.read_text()
        self.file_lines = [json.loads(line) for line in (folder / "h3.log").read_text().splitlines()]

    def _ask(self, service: Service) -> None:
        service.ready()
        service.client.headers["authorization"] = f"Bearer {KEY}"
        self.jobs = [
            service.post({"prompt": PROMPT, "seed": 1}, x_request_id="asked-for-this").json(),
            service.post({"prompt": {"shots": [{"description": SECOND}]}}).json(),
            service.post({"prompt": "hold narwhal"}, prefer="respond-async").json(),
        ]
        service.client.post(f"/jobs/{self.jobs[2]['id']}/cancel")
        service.wait(self.jobs[2]["id"])
        _be_rude(service)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]


def _be_rude(service: Service) -> None:
    """Requests that end badly, each with something in it that must not be told."""
    service.post({"prompt": PROMPT, "frames": 6, "first_frame": {"upload": PROMPT}})
    service.client.get("/jobs", headers={"authorization": f"Bearer {WRONG_KEY}"})
    service.client.get(f"/jobs/{quote(PROMPT)}?key={KEY}")
    for path in ("/live", "/ready", "/metrics"):
        service.client.get(path)
    found = urlsplit(service.url)
    for message in (f"GET / HTTP/9.9\r\nAuthorization: Bearer {KEY}\r\n\r\n", f"{PROMPT}\r\n\r\n"):
        with socket.create_connection((found.hostname or "", found.port or 0)) as connection:
            connection.sendall(message.encode())
            connection.recv(1000)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield Run(tmp_path_factory.mktemp("logs") / "run")


def test_every_line_is_json_with_its_time_level_event_and_logger(run: Run) -> None:
    assert not run.events("plain")
    assert all({"time", "level", "event", "logger"} <= line.keys() for line in run.lines)


def test_the_jobs_ended_as_they_should_for_this_to_mean_something(run: Run) -> None:
    assert [job["status"] for job in run.jobs[:2]] == ["failed", "succeeded"], run.jobs[1]
    assert run.events("engine_bug") and [line for line in run.lines if line["logger"] == "some.library"]


def test_prompts_and_keys_are_nowhere(run: Run) -> None:
    for text in run.text, (run.folder / "h3.log").read_text():
        for word in ("dragon", "zebra", "caf", "walrus", KEY, WRONG_KEY):
            assert word not in text, next(line for line in text.splitlines() if word in line)


def test_jobs_are_told_from_start_to_end(run: Run) -> None:
    ids = [job["id"] for job in run.jobs]
    assert [line["job_id"] for line in run.events("generate_start")] == ids
    assert [line["job_id"] for line in run.events("generate_complete")] == ids[1:2]
    assert [(line["job_id"], line["code"]) for line in run.events("generate_failed")] == [
        (ids[0], run.jobs[0]["error"]["code"]),
        (ids[2], "cancelled"),
    ]
    for event in ("generate_start", "generate_complete", "generate_failed"):
        assert all(line.keys() >= ALWAYS for line in run.events(event))
    assert {"queue", "total"} <= run.events("generate_failed")[0]["timings"].keys()


def test_a_request_is_followed_from_the_socket_to_the_engine(run: Run) -> None:
    with_id = [line["event"] for line in run.lines if line.get("request_id") == "asked-for-this"]
    assert {"http_request", "generate_start", "generate_failed", "engine_bug"} <= set(with_id)
    (bug,) = run.events("engine_bug")
    assert bug["job_id"] == run.jobs[0]["id"] and "ValueError" in bug["exception"]


def test_probes_are_not_told_and_other_requests_are(run: Run) -> None:
    routes = [line["route"] for line in run.events("http_request")]
    assert {"/generate", "/jobs/{job_id}"} <= set(routes)
    assert not {"/live", "/ready", "/metrics"} & set(routes)
    assert all(line["duration_ms"] >= 0 and line["status"] for line in run.events("http_request"))


def test_the_file_holds_the_same_lines(run: Run) -> None:
    def told(lines: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(line) for line in lines)

    assert told(run.file_lines) == told(run.lines)


def test_a_prompt_is_told_at_debug_level_when_asked_for(tmp_path: Path) -> None:
    service = Service(tmp_path, BLABBING, environment={"H3_LOG_PROMPTS": "1"}).ready()
    job = service.wait(service.post(SMALL | {"prompt": PROMPT}, prefer="respond-async").json()["id"])
    look(lambda: [line for line in service.log if line["event"] == "generate_failed"])
    service.stop()
    (told,) = (line for line in service.log if line["event"] == "prompt")
    assert (told["level"], told["text"], told["job_id"]) == ("debug", PROMPT, job["id"])
    assert not [line for line in service.log if "dragon" in json.dumps(line) and line is not told and line != told]

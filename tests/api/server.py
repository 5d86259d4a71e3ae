"""A service on a real socket, in a thread of the test process, with the fake engine in a process of its own."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import uvicorn
from PIL import Image

from h3runtime.api.app import create_app
from h3runtime.api.connections import ServerConfig
from h3runtime.api.service import Service
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.jobs.supervisor import Limits
from h3runtime.settings import Settings

PATIENCE = 120.0
SMALL = {"prompt": "x", "width": 64, "height": 64, "frames": 5, "steps": 2}
HELD = {**SMALL, "prompt": "x hold"}
"""Computes until it is told to stop."""
Found = TypeVar("Found")


@dataclass(frozen=True)
class Running:
    service: Service
    client: httpx2.Client
    url: str

    def post(self, body: Any = None, **options: Any) -> httpx2.Response:
        if body is not None:
            options["json"] = body
        return self.client.post("/generate", **options)

    def offenders(self, body: dict[str, Any]) -> dict[str, dict[str, str]]:
        """The errors of a refused request by field."""
        answer = self.post(body)
        assert answer.status_code == 422, answer.text
        return {error["field"]: error for error in answer.json()["errors"]}

    def submit(self, **fields: Any) -> str:
        answer = self.client.post("/generate", json={**SMALL, **fields}, headers={"Prefer": "respond-async"})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.client.get(f"/jobs/{job_id}").json())

    def wait(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """The job once it has one of the statuses (by default, once it has ended)."""
        wanted = statuses or ("succeeded", "failed", "cancelled")
        until = time.monotonic() + PATIENCE
        while (job := self.job(job_id))["status"] not in wanted:
            assert time.monotonic() < until, job
            time.sleep(0.01)
        return job

    def wait_ready(self, *statuses: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while (state := self.client.get("/ready").json())["status"] not in (statuses or ("ready",)):
            assert time.monotonic() < until, state
            time.sleep(0.01)
        return dict(state)


@contextmanager
def running(
    folder: Path,
    engine: tuple[Any, ...] = (),
    limits: Limits | None = None,
    ready: bool = True,
    recipe: EngineRecipe | None = None,
    **settings: Any,
) -> Iterator[Running]:
    service = Service(
        Settings(**{"data_dir": folder, "disk_floor_bytes": 0, "port": 0} | settings),
        recipe or EngineRecipe("tests.fake_engine:create", engine),
        limits,
    )
    config = ServerConfig(create_app(service), service.settings.read_seconds)
    config.port, config.timeout_graceful_shutdown = service.settings.port, 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        service.start()
        until(lambda: server.started)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            found = Running(service, client, url)
            if ready:
                found.wait_ready("ready", "dead")
                assert service.state.status is EngineStatus.READY, service.state
            yield found
    finally:
        server.should_exit = True
        service.close()
        thread.join()


def until(look: Callable[[], Found]) -> Found:
    """What `look` finds, as soon as it finds something."""
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.005)
    return found


def picture(width: int, height: int, kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, kind, **options)
    return file.getvalue()

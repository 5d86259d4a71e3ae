"""A real server process, forked from an interpreter that has imported it, and what may be done to it.

Its folder holds `data` (what the server owns), `log` (its standard output and error), and what the stub engine reads
and writes. Everything that it starts carries the folder's name in its environment, so that what is left can be found.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2

from h3runtime.__main__ import main
from tests.faults import sabotage
from tests.forking import fork, write_to

STUB, REAL = "tests.faults.stub_engine:create", "h3runtime.engine:create"
MARK = "FAULTS_FOLDER"
PATIENCE = 120.0
SMALL = {"prompt": "x", "width": 64, "height": 64, "frames": 5, "steps": 3, "seed": 7}
ENDED = ("succeeded", "failed", "cancelled", "expired")


def look(at: Callable[[], Any], seconds: float = PATIENCE, pause: float = 0.02) -> Any:
    """What `at` finds, as soon as it finds something."""
    until = time.monotonic() + seconds
    while not (found := at()):
        assert time.monotonic() < until, "nothing came of it"
        time.sleep(pause)
    return found


class Service:
    """One server. `settings` are its flags by field name; sabotage: of `sabotage`, with its arguments."""

    def __init__(
        self,
        folder: Path,
        factory: str = STUB,
        sabotaged: tuple[Any, ...] = (),
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        named = {"factory": factory, "sabotaged": sabotaged, "environment": environment}
        self.options = {name: value for name, value in named.items() if value not in (STUB, (), None)} | settings
        flags = {
            "data_dir": folder / "data",
            "port": 0,
            "disk_floor_bytes": 0,
            "drain_seconds": 20,
            "restarts": 1000,
        } | settings
        self.log_file.touch()
        self._log_from = self.log_file.stat().st_size
        arguments = [item for name, value in flags.items() for item in (f"--{name.replace('_', '-')}", str(value))]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
        world = clean | {MARK: str(folder)} | dict(environment or {})
        self.process = fork(_served, folder, arguments, factory, sabotaged, world)
        self._client: httpx2.Client | None = None

    @property
    def log_file(self) -> Path:
        return self.folder / "log"

    @property
    def log(self) -> list[dict[str, Any]]:
        """Lines of this server; what is no JSON (a message on standard error) has the event `plain`."""
        with self.log_file.open() as file:
            file.seek(self._log_from)
            return [_parsed(line) for line in file]

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def client(self) -> httpx2.Client:
        if self._client is None:
            self._client = httpx2.Client(base_url=self.url, timeout=PATIENCE)
        return self._client

    @property
    def url(self) -> str:
        return str(look(lambda: self._event("listening"))["url"])

    @property
    def engine(self) -> int:
        """The pid of the engine process, once there is one that is loaded."""
        return int(look(self.engine_now))

    def engine_now(self) -> int | None:
        for children in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):
                for pid in children.read_text().split():
                    if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return int(pid)
        return None

    def ready(self) -> Service:
        def is_ready() -> bool:
            assert self.process.is_alive(), self.log
            with suppress(httpx2.TransportError):
                return bool(self.client.get("/ready").status_code == 200)
            return False

        look(is_ready)
        return self

    def post(self, body: Mapping[str, Any] | None = None, **headers: str) -> httpx2.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/generate", json={**SMALL, **(body or {})}, headers=given)

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.client.get(f"/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait(self, job_id: str, *statuses: str) -> dict[str, Any]:
        wanted = statuses or ENDED
        return dict(look(lambda: (job := self.job(job_id))["status"] in wanted and job))

    def wait_stage(self, job_id: str, stage: str) -> None:
        look(lambda: self.job(job_id)["progress"]["stage"] == stage)

    def kill(self) -> None:
        """As the kernel would: the server is gone, its engine notices by itself."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(PATIENCE)
        self.close()

    def stop(self, seconds: float = PATIENCE) -> int:
        """SIGTERM, and the exit code."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return self.wait_exit(seconds)

    def wait_exit(self, seconds: float = PATIENCE) -> int:
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, "the server is still running"
        self.close()
        return code

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _event(self, event: str) -> dict[str, Any] | None:
        assert self.process.is_alive() or event != "listening", self.log_file.read_text()[-2000:]
        return next((line for line in self.log if line.get("event") == event), None)


def marked(folder: Path) -> dict[int, str]:
    """Processes that carry the folder's mark, but for the dead that nobody has asked after: pid and command line."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_marked = f"{MARK}={folder}\0".encode() in (entry / "environ").read_bytes()
            if is_marked and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")[:200]
    return found


@contextmanager
def streaming(service: Service, job_id: str) -> Iterator[httpx2.Response]:
    with service.client.stream("GET", f"/jobs/{job_id}/events") as answer:
        yield answer


def _parsed(line: str) -> dict[str, Any]:
    with suppress(ValueError):
        return dict(json.loads(line))
    return {"event": "plain", "text": line}


def _served(
    folder: Path, arguments: list[str], factory: str, sabotaged: tuple[Any, ...], world: Mapping[str, str]
) -> None:
    """In the new process: become a server."""
    write_to(folder / "log", folder / "log")
    os.environ.clear()
    os.environ.update(world)
    # Its engine is a fresh interpreter, which has no use for the program that this one was forked for.
    sys.modules["__main__"] = ModuleType("__main__")
    if sabotaged:
        name, *given = sabotaged
        getattr(sabotage, name)(*given)
    sys.argv[:] = ["h3runtime", "serve", *arguments]
    sys.exit(main(["serve", *arguments]) if factory == REAL else _serve_stub(arguments, factory))


def _serve_stub(arguments: list[str], factory: str) -> int:
    """As the command does it, with another engine."""
    from h3runtime.api.serve import serve
    from h3runtime.cli.report import print_error
    from h3runtime.errors import H3Error
    from h3runtime.settings import add_flags, resolve

    parser = argparse.ArgumentParser()
    add_flags(parser)
    try:
        return serve(resolve(vars(parser.parse_args(arguments))), factory)
    except H3Error as error:
        print_error(error)
        return 1

"""`serve` as a process of its own, forked from an interpreter that has imported it, with the fake engine.

Read by the tests of signals and of the lock; `tests/e2e/test_serve.py` starts one as an operator does.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2

from h3runtime.api import serve as serving
from h3runtime.jobs.supervisor import Supervisor
from h3runtime.settings import Settings
from tests.api.server import PATIENCE, SMALL
from tests.forking import fork, write_to


@dataclass
class Process:
    """One server. out, err: files that hold what it printed."""

    process: BaseProcess
    out: Path
    err: Path
    client: httpx2.Client

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every whole line of standard output so far; each must be JSON, the library's own included."""
        whole, _, _ = self.out.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it is still running."""
        self.process.join(seconds)
        return self.process.exitcode

    def in_background(self, **body: Any) -> Future[httpx2.Response]:
        """A blocking request in a thread, once its job has begun."""
        clients = ThreadPoolExecutor(1)
        answer = clients.submit(self.client.post, "/generate", json=SMALL | body)
        clients.shutdown(wait=False)
        self.wait_event("generate_start")
        return answer

    def wait_event(self, event: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while not (found := [line for line in self.log if line["event"] == event]):
            assert time.monotonic() < until, self.log
            time.sleep(0.01)
        return found[-1]

    def engine_pid(self) -> int:
        below = children_of(self.pid)
        return next(pid for pid in below if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())


def children_of(pid: int) -> list[int]:
    """A process is the child of the thread that started it."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


@contextmanager
def served(
    folder: Path, drain: float = 20.0, tls: ssl.SSLContext | None = None, hanging: bool = False, **settings: Any
) -> Iterator[Process]:
    """hanging: its drain never ends by itself."""
    given = {"data_dir": folder, "drain_seconds": drain, "port": 0, "disk_floor_bytes": 0} | settings
    out, err = (folder.with_name(f"{folder.name}-{name}") for name in ("out", "err"))
    out.write_text("")
    with httpx2.Client(timeout=PATIENCE, verify=tls or True) as client:
        process = Process(fork(_serve, given, hanging, out, err), out, err, client)
        try:
            client.base_url = process.wait_event("listening")["url"]
            process.wait_event("engine_ready")
            yield process
        finally:
            process.process.kill()
            process.process.join()


def _serve(given: Mapping[str, Any], hanging: bool, out: Path, err: Path) -> None:
    write_to(out, err)
    # Whoever runs the tests may have it ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Its engine is a fresh interpreter, which has no use for the program that this one was forked for.
    sys.modules["__main__"] = ModuleType("__main__")
    if hanging:
        serving.LAST_SECONDS = 0.2
        Supervisor.drain = lambda *_: time.sleep(60)  # type: ignore[method-assign]
    sys.exit(serving.serve(Settings(**given), "tests.fake_engine:create_for_serve"))

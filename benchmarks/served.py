"""A server to be measured: `h3runtime serve` in a process of its own, as an operator starts it, and questions to it.

Fed by `load` and `soak`. With another engine than the real one the server is the same; only what computes is replaced.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import argparse, sys
from h3runtime.api.serve import serve
from h3runtime.settings import add_flags, resolve
parser = argparse.ArgumentParser()
add_flags(parser)
sys.exit(serve(resolve(vars(parser.parse_args(sys.argv[2:]))), sys.argv[1]))
"""
PATIENCE = 180.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def until(look: Callable[[], T], seconds: float = PATIENCE, pause: float = 0.05) -> T:
    """What `look` finds, as soon as it finds something. TimeoutError."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise TimeoutError("nothing came of it")
        time.sleep(pause)
    return found


class Server:
    """Started when made, ready when `ready` returns; a context that ends it. engine: `package.module:function`, None
    for the real one. settings: its flags by field name."""

    def __init__(self, folder: Path, engine: str | None = None, **settings: object) -> None:
        self.data = folder / "data"
        flags = {"data_dir": self.data, "port": 0, "disk_floor_bytes": 0} | settings
        given = [item for name, value in flags.items() for item in (f"--{name.replace('_', '-')}", str(value))]
        command = ["-m", "h3runtime", "serve", *given] if engine is None else ["-c", PROGRAM, engine, *given]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
        self._events: dict[str, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=clean
        )
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        try:
            found = urlsplit(str(until(lambda: self._events.get("listening", {}))["url"]))
        except BaseException:
            self._process.kill()
            raise
        self.host, self.port = found.hostname or "", found.port or 0

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def engine_pid(self) -> int | None:
        """Of the process that computes; None while there is none."""
        for children in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):
                for pid in children.read_text().split():
                    if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return int(pid)
        return None

    def ready(self) -> Server:
        """RuntimeError, with the reason that it tells, for one that never will be."""
        until(self._is_ready)
        return self

    def _is_ready(self) -> bool:
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the server ended with {code}")
        answer = self.ask("GET", "/ready")
        if answer.status != 200 and answer.json["status"] == "dead":
            raise RuntimeError(f"the engine can't start: {answer.json['reason']}")
        return answer.status == 200

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One request on a connection of its own. body: bytes as they are, else JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {"content-type": "application/json", **given})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def submit(self, body: Mapping[str, Any]) -> str:
        """A job in line."""
        answer = self.ask("POST", "/generate", body, prefer="respond-async")
        if answer.status != 202:
            raise RuntimeError(answer.body.decode())
        return str(answer.json["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/jobs/{job_id}").json)

    def listing(self) -> list[dict[str, Any]]:
        """Every page of `GET /jobs`."""
        jobs: list[dict[str, Any]] = []
        while True:
            after = f"&after={jobs[-1]['id']}" if jobs else ""
            page = self.ask("GET", f"/jobs?limit=100{after}").json
            jobs += page["data"]
            if not page["has_more"]:
                return jobs

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def _read(self, lines: IO[str]) -> None:
        """Keep the first line of each event; nobody may be held up by a full pipe."""
        with lines:
            for line in lines:
                with suppress(ValueError):
                    told = json.loads(line)
                    self._events.setdefault(str(told.get("event")), told)

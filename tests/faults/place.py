"""One case's world: its folder, its servers, every job that was accepted, and the judgement at the end.

What must hold whatever went wrong: each accepted job is listed exactly once and ended as its case allows; a success's
file is whole and is served as it is; nothing lies in the outputs, the scraps or the inputs that belongs to no job; the
server goes when asked; no process is left.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.service import ENDED, Service, look, marked
from tests.faults.stub_engine import GATE, JOURNAL

OWNED = {
    "lock",
    "jobs.sqlite3",
    "jobs.sqlite3-wal",
    "jobs.sqlite3-shm",
    "inputs",
    "tails",
    "previews",
    "tmp",
    "outputs",
}
BESIDE = (".latents.safetensors", ".steps.safetensors")


@dataclass
class Findings:
    """What is wrong, by kind; all empty is what a case must end with."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.lost, self.doubled, self.wrong, self.processes, self.files))


class NotPlayable(Exception):
    """This machine doesn't allow what the case needs."""


class Place:
    """Made for the cases of one family; `close` ends whatever is left of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.data = folder / "data"
        self.outputs = self.data / "outputs"
        self.servers: list[Service] = []
        self.mounts: list[Path] = []
        self.may_end: dict[str, tuple[str, ...]] = {}

    def serve(self, ready: bool = True, fresh: bool = False, **options: Any) -> Service:
        """A server on this data: the one that runs, if it was started with these options, else another in its place."""
        running = self.servers[-1] if self.servers else None
        if running is not None and running.process.is_alive():
            if running.options == options and not fresh:
                return running.ready()
            assert running.stop() == 0
        service = Service(self.folder, **options)
        self.servers.append(service)
        return service.ready() if ready else service

    @property
    def server(self) -> Service:
        return self.servers[-1]

    def open_gate(self) -> None:
        (self.folder / GATE).touch()

    def close_gate(self) -> None:
        (self.folder / GATE).unlink(missing_ok=True)

    def submit(self, *may_end: str, **fields: Any) -> str:
        """A job in line; how it may end (succeeded, unless said)."""
        answer = self.server.post(fields, prefer="respond-async")
        assert answer.status_code == 202, answer.text
        return self.expect(answer.json()["id"], *may_end)

    def expect(self, job_id: str, *may_end: str) -> str:
        self.may_end[job_id] = may_end or ("succeeded",)
        return job_id

    def forget(self, job_id: str) -> None:
        """It was deleted: it must not be listed, and own no file."""
        self.may_end.pop(job_id, None)

    def journal(self, job_id: str) -> list[tuple[str, int]]:
        """Stage and step of everything that the stub engine reported for a job."""
        with suppress(FileNotFoundError):
            lines = [line.split() for line in (self.folder / JOURNAL).read_text().splitlines()]
            return [(stage, int(step)) for _, job, stage, step in lines if job == job_id]
        return []

    def mount(self, path: Path, size: int) -> None:
        """A small disk of its own, unless it is there; `NotPlayable` where that isn't allowed."""
        if path in self.mounts:
            return
        path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "faults", str(path)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise NotPlayable("mounting a tmpfs needs root")
        self.mounts.append(path)

    def settle(self) -> Findings:
        """The gate opens, everything that waits or runs ends, and the books are gone through."""
        self.open_gate()
        if not self.servers or not self.server.process.is_alive():
            self.serve()
        findings = Findings()
        listed = _settled(self.server.ready())
        self._judge_jobs(listed, self.server, findings)
        self._judge_files(listed, findings)
        self.close_gate()
        return findings

    def end(self) -> Findings:
        """The server goes, and takes all that it started along."""
        findings = Findings()
        engine = self.server.engine_now()
        if (code := self.server.stop()) != 0:
            findings.wrong.append(f"the server ended with {code}")
        _gone(lambda: marked(self.folder), findings.processes)
        if engine is not None and Path(f"/proc/{engine}").exists():
            findings.processes.append(f"engine {engine}")
        _gone(lambda: _entries(self.data / "tmp"), findings.files)
        return findings

    def close(self) -> None:
        for service in self.servers:
            service.close()
            if service.process.is_alive():
                service.process.kill()
                service.process.join()
        for pid in marked(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self.mounts:
            subprocess.run(["umount", "-l", str(path)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _judge_jobs(self, listed: list[dict[str, Any]], service: Service, findings: Findings) -> None:
        times = Counter(job["id"] for job in listed)
        findings.doubled += [job_id for job_id, count in times.items() if count > 1]
        findings.lost += [job_id for job_id in self.may_end if job_id not in times]
        for job in listed:
            allowed = self.may_end.get(job["id"], ENDED)
            if job["status"] not in allowed:
                findings.wrong.append(f"{job['id']} is {job['status']}, not {allowed}: {job['error']}")
            if job["status"] == "succeeded":
                self._judge_clip(job, service, findings)

    def _judge_clip(self, job: Mapping[str, Any], service: Service, findings: Findings) -> None:
        for output in job["outputs"]:
            path = self.outputs / output["output"]
            if not path.is_file():
                findings.lost.append(f"{path.name} of {job['id']}")
                continue
            data = path.read_bytes()
            served = service.client.get(output["url"])
            if not hashlib.sha256(data).hexdigest() == output["sha256"] == hashlib.sha256(served.content).hexdigest():
                findings.wrong.append(f"{path.name} isn't what {job['id']} says")

    def _judge_files(self, listed: list[dict[str, Any]], findings: Findings) -> None:
        made = [job for job in listed if job["status"] == "succeeded"]
        owned = {output["output"] for job in made for output in job["outputs"]}
        owned |= {name + suffix for name in owned for suffix in BESIDE}
        known = {job["id"] for job in listed}
        _gone(lambda: [name for name in _entries(self.outputs) if name not in owned], findings.files)
        _gone(lambda: _entries(self.data / "inputs") + _entries(self.data / "tmp"), findings.files)
        for folder in ("tails", "previews"):
            findings.files += [name for name in _entries(self.data / folder) if name.partition(".")[0] not in known]
        findings.files += [name for name in _entries(self.data) if name not in OWNED]


def _settled(service: Service) -> list[dict[str, Any]]:
    """All jobs, once all of them have ended."""

    def ended() -> list[dict[str, Any]] | None:
        jobs = listing(service.client)
        return jobs or [{}] if all(job["status"] in ENDED for job in jobs) else None

    return [job for job in look(ended, pause=0.05) if job]


def listing(client: httpx2.Client) -> list[dict[str, Any]]:
    """Every page of `GET /jobs`."""
    jobs: list[dict[str, Any]] = []
    while True:
        after = {"after": jobs[-1]["id"]} if jobs else {}
        page = client.get("/jobs", params={"limit": "100", **after}).json()
        jobs += page["data"]
        if not page["has_more"]:
            return jobs


def _entries(folder: Path) -> list[str]:
    """Names, but for the scratch folder of outputs that lie on a disk of their own."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.name != ".h3runtime-tmp" or any(path.iterdir()))


def _gone(at: Callable[[], Any], findings: list[str], seconds: float = 30.0) -> None:
    """What is still there after a while."""
    with suppress(AssertionError):
        look(lambda: not at(), seconds)
    findings += [str(item) for item in (at().items() if isinstance(at(), dict) else at())]

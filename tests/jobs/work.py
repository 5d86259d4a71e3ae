"""What the tests of jobs work with: a queue with a store of its own, requests, and an engine that only writes files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h3runtime.core import (
    LATENTS_SUFFIX,
    BackendChoice,
    Check,
    Clip,
    EngineFacts,
    GenerateSpec,
    SamplerSettings,
    TailRequest,
    Task,
    variant_path,
)
from h3runtime.jobs.files import Folders
from h3runtime.jobs.outputs import staged
from h3runtime.jobs.queue import JobQueue
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.table import Job, JobTable
from h3runtime.settings import Settings

CHOICE = BackendChoice("sdpa", "", ("sdpa",), {}, {})
FACTS = EngineFacts("cpu", "a:1", (), CHOICE, CHOICE, {}, {})


@dataclass
class Place:
    """One data folder with a queue on it."""

    folders: Folders
    queue: JobQueue

    @property
    def table(self) -> JobTable:
        return self.queue.table

    def spec(self, job_id: str, **fields: Any) -> GenerateSpec:
        output = self.folders.outputs / fields.pop("output", f"{job_id}.mp4")
        scratch = self.folders.scratch_of(job_id)
        tail = TailRequest(self.folders.tail_of(job_id), 5)
        sampling = SamplerSettings(4, seed=2**64 - 1)
        return GenerateSpec(job_id, Task.T2VA, "x", 64, 64, 5, sampling, output, scratch, tail=tail, **fields)

    def admit(self, job_id: str, *, owner: str = "", order: Any = None, work: Any = None, **fields: Any) -> Job:
        named = {} if order is None else {"order": order}
        return self.queue.admit(self.spec(job_id, **fields), (), owner=owner, work=work, **named)

    def take(self) -> Job:
        job = self.queue.take(FACTS, first=False)
        assert job is not None
        return job

    def make(self, job: Job, content: str = "") -> Clip:
        """What an engine would leave in the job's scratch, and say of it."""
        spec = staged(job.spec)
        if spec.tail is not None:
            spec.tail.path.write_bytes(b"tail")
        clips = [_write(spec, index, content) for index in range(spec.n)]
        return _with_variants(clips)

    def done(self, job_id: str, content: str = "", **fields: Any) -> Job:
        """A job from its admission to its success."""
        self.admit(job_id, **fields)
        job = self.take()
        assert job.id == job_id
        self.queue.succeeded(job_id, self.make(job, content))
        return self.table.get(job_id)


def _write(spec: GenerateSpec, index: int, content: str) -> Clip:
    output = variant_path(spec.output, index, spec.n)
    data = f"{spec.job_id} {index} {content}".encode()
    output.write_bytes(data)
    latents = output.with_name(output.name + LATENTS_SUFFIX)
    if spec.save_latents:
        latents.write_bytes(b"latents " + data)
    return Clip(
        output=output,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        width=64,
        height=64,
        frames=5,
        samples=100,
        seed=index,
        forwards=4,
        attention="sdpa",
        linear="dequant",
        timings={"sampling": 1.0},
        memory={"peak": 1},
        checks={"video": Check({"luma": float("inf"), "black": True}, (("warn", "dark"),))},
        latents_output=latents if spec.save_latents else None,
    )


def _with_variants(clips: list[Clip]) -> Clip:
    return replace(clips[0], variants=tuple(clips[1:]))


def open_place(folder: Path, limit: int = 16, **settings: Any) -> Place:
    folders = Folders(Settings(**{"data_dir": folder, "disk_floor_bytes": 0} | settings))
    return Place(folders, JobQueue(JobTable(JobStore(folders.store)), folders, limit))


def close_place(found: Place) -> None:
    found.queue.stop()
    found.table.close()
    found.folders.close()


@contextmanager
def place(folder: Path, limit: int = 16, **settings: Any) -> Iterator[Place]:
    """A server's jobs without a server; opening the same folder again is a restart."""
    found = open_place(folder, limit, **settings)
    try:
        yield found
    finally:
        close_place(found)

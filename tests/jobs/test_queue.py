"""The queue and the table by themselves: room, names, order, ends, and what is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from h3runtime.core import (
    BackendChoice,
    Check,
    Clip,
    EngineFacts,
    GenerateSpec,
    Progress,
    SamplerSettings,
    Task,
)
from h3runtime.errors import Draining, JobCancelled, JobNotFound, OutOfMemory, OutputExists, QueueFull
from h3runtime.jobs.files import Folders
from h3runtime.jobs.queue import JobQueue, outputs_of
from h3runtime.jobs.table import Job, JobTable, Status
from h3runtime.settings import Settings

CHOICE = BackendChoice("sdpa", "", ("sdpa",), {}, {})
FACTS = EngineFacts("cpu", "", (), CHOICE, CHOICE, {}, {})


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    folders = Folders(Settings(data_dir=tmp_path))
    yield JobQueue(JobTable(), folders, 2)
    folders.close()


def spec(
    queue: JobQueue, job_id: str, output: str = "", save_latents: bool = False, diagnostic_latents: bool = False
) -> GenerateSpec:
    return GenerateSpec(
        job_id,
        Task.T2VA,
        "x",
        64,
        64,
        5,
        SamplerSettings(4, seed=1),
        queue.folders.outputs / (output or f"{job_id}.mp4"),
        queue.folders.scratch_of(job_id),
        save_latents=save_latents,
        diagnostic_latents=diagnostic_latents,
    )


def clip(job: Job) -> Clip:
    checks = {"video": Check({})}
    return Clip(job.spec.output, "", 1, 64, 64, 5, 1, 1, 4, "sdpa", "dequant", {"sampling": 1.0}, {}, checks)


def test_an_idle_engine_leaves_room_for_one_more(queue: JobQueue) -> None:
    for job_id in "abc":
        queue.admit(spec(queue, job_id), ())
    with pytest.raises(QueueFull):
        queue.admit(spec(queue, "d"), ())
    taken = queue.take(FACTS, first=True)
    assert taken is not None
    assert (taken.id, taken.status, taken.spec.attention) == ("a", Status.RUNNING, "sdpa")
    assert queue.take(FACTS, first=False) is None
    with pytest.raises(QueueFull):
        queue.admit(spec(queue, "d"), ())
    queue.succeeded("a", clip(taken))
    queue.admit(spec(queue, "d"), ())
    assert queue.waiting == 3


def test_progress_never_falls(queue: JobQueue) -> None:
    queue.admit(spec(queue, "a"), ())
    queue.take(FACTS, first=True)
    queue.progressed("a", Progress("sampling", 1, 4, 0.5))
    queue.progressed("a", Progress("mux", 0, 1, 0.2))
    assert queue.table.get("a").progress == Progress("mux", 0, 1, 0.5)


def test_the_first_end_stands(queue: JobQueue) -> None:
    queue.admit(spec(queue, "a"), ())
    queue.take(FACTS, first=True)
    queue.failed("a", OutOfMemory("full"))
    queue.failed("a", JobCancelled("late"))
    job = queue.table.get("a")
    assert (job.status, job.error and job.error.code) == (Status.FAILED, "out_of_memory")


def test_every_end_removes_what_the_job_had(queue: JobQueue) -> None:
    queue.admit(spec(queue, "a"), ())
    for folder in (queue.folders.inputs_of("a"), queue.folders.scratch_of("a")):
        folder.mkdir()
        (folder / "x").write_bytes(b"x")
    queue.cancel("a")
    assert [*queue.folders.inputs.iterdir(), *queue.folders.tmp.iterdir()] == []
    assert queue.table.get("a").status is Status.CANCELLED


def test_names_of_live_jobs_and_of_files_are_taken(queue: JobQueue) -> None:
    held = spec(queue, "a", "x.mp4", save_latents=True, diagnostic_latents=True)
    queue.admit(held, ())
    beside = [queue.folders.outputs / f"x.mp4.{kind}.safetensors" for kind in ("latents", "steps")]
    assert outputs_of(held) == {held.output, *beside}
    for output in (held.output, *beside):
        with pytest.raises(OutputExists), queue.promise_outputs(frozenset({output}), overwrite=True):
            pass
    queue.cancel("a")
    held.output.write_bytes(b"x")
    with pytest.raises(OutputExists), queue.promise_outputs(frozenset({held.output}), overwrite=False):
        pass
    # Another request that is being judged at the same time holds it too.
    first, second = (queue.promise_outputs(frozenset({held.output}), overwrite=True) for _ in range(2))
    with first, pytest.raises(OutputExists), second:
        pass
    with queue.promise_outputs(frozenset({held.output}), overwrite=True):
        pass


def test_a_closed_queue_takes_nothing_and_lets_go_of_what_waits(queue: JobQueue) -> None:
    queue.admit(spec(queue, "a"), ())
    queue.close()
    error = queue.table.get("a").error
    assert error is not None
    assert error.code == "interrupted"
    with pytest.raises(Draining):
        queue.admit(spec(queue, "b"), ())
    assert queue.wait_until_idle(0)


def test_the_table_forgets_the_oldest_that_have_ended(queue: JobQueue) -> None:
    table = JobTable(kept=2)
    for number in range(6):
        table.add(Job(spec(queue, str(number))))
        if number != 1:
            table.change(str(number), status=Status.SUCCEEDED)
    assert [job.id for job in table.all()] == ["5", "4", "3", "1"]
    with pytest.raises(JobNotFound):
        table.get("0")


def test_watchers_are_told_once_and_may_give_up(queue: JobQueue) -> None:
    table = JobTable()
    table.add(Job(spec(queue, "a")))
    told: list[str] = []
    table.watch("a", lambda: told.append("first"))
    table.watch("a", lambda: told.append("second"))()
    table.change("a", status=Status.RUNNING)
    assert told == []
    table.change("a", status=Status.FAILED)
    table.change("a", status=Status.FAILED)
    assert told == ["first"]
    table.watch("a", lambda: told.append("late"))
    assert told == ["first", "late"]

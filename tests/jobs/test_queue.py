"""The queue by itself: room, names, order, priority, ends, deletion, and what a closed one keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from h3runtime.core import Progress, Work
from h3runtime.errors import (
    Draining,
    EngineDead,
    Interrupted,
    JobCancelled,
    JobNotFound,
    OutOfMemory,
    OutputExists,
    QueueFull,
)
from h3runtime.jobs.outputs import outputs_of
from h3runtime.jobs.table import Order, Status
from tests.jobs.work import FACTS, Place, place

PATIENCE = 20.0


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path, limit=2) as found:
        yield found


def test_an_idle_engine_leaves_room_for_one_more(found: Place) -> None:
    for job_id in "abc":
        found.admit(job_id)
    with pytest.raises(QueueFull):
        found.admit("d")
    taken = found.take()
    assert (taken.id, taken.status, taken.spec.attention, taken.attempt) == ("a", Status.RUNNING, "sdpa", 1)
    assert taken.progress == Progress("conditioning", 0, 4)
    assert found.queue.take(FACTS, first=False) is None
    with pytest.raises(QueueFull):
        found.admit("d")
    found.queue.succeeded("a", found.make(taken))
    found.admit("d")
    assert found.queue.waiting == 3


def test_higher_priority_goes_first_and_equals_in_order_of_arrival(tmp_path: Path) -> None:
    priorities = {"a": 0, "b": 10, "c": -10, "d": 10, "e": 0}
    with place(tmp_path) as found:
        for job_id, priority in priorities.items():
            found.admit(job_id, order=Order(priority=priority))
    # A restart changes nothing about it.
    with place(tmp_path) as found:
        order = []
        while (job := found.queue.take(FACTS, first=False)) is not None:
            order.append(job.id)
            found.queue.failed(job.id, EngineDead("x"))
        assert order == ["b", "d", "a", "e", "c"]


def test_progress_never_falls(found: Place) -> None:
    found.admit("a")
    found.take()
    found.queue.progressed("a", Progress("sampling", 1, 4, 0.5))
    found.queue.progressed("a", Progress("mux", 0, 1, 0.2))
    assert found.table.get("a").progress == Progress("mux", 0, 1, 0.5)


def test_the_newest_preview_is_kept_beside_the_job(found: Place) -> None:
    found.admit("a")
    found.take()
    assert found.queue.preview_of("a") is None
    for content in (b"first", b"second"):
        found.queue.progressed("a", Progress("sampling", 1, 4, 0.5, preview=content))
    path = found.queue.preview_of("a")
    assert path is not None and path.read_bytes() == b"second"
    assert found.table.get("a").progress.preview is None
    assert [entry.name for entry in found.folders.previews.iterdir()] == ["a.png"]


def test_the_first_end_stands(found: Place) -> None:
    found.admit("a")
    found.take()
    found.queue.failed("a", OutOfMemory("full"))
    found.queue.failed("a", JobCancelled("late"))
    job = found.table.get("a")
    assert (job.status, job.error and job.error.code) == (Status.FAILED, "out_of_memory")


def test_every_end_removes_what_the_job_had(found: Place) -> None:
    found.admit("a")
    for folder in (found.folders.inputs_of("a"), found.folders.scratch_of("a")):
        folder.mkdir()
        (folder / "x").write_bytes(b"x")
    found.queue.cancel("a")
    assert [*found.folders.inputs.iterdir(), *found.folders.tmp.iterdir()] == []
    assert found.table.get("a").status is Status.CANCELLED


def test_names_of_live_jobs_and_of_files_are_taken(found: Place) -> None:
    queue = found.queue
    held = found.spec("a", output="x.mp4", save_latents=True, diagnostic_latents=True)
    queue.admit(held, ())
    beside = [found.folders.outputs / f"x.mp4.{kind}.safetensors" for kind in ("latents", "steps")]
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


def test_every_clip_of_several_holds_its_name(found: Place) -> None:
    spec = found.spec("a", output="x.mp4", n=2, save_latents=True)
    names = {"x-0.mp4", "x-1.mp4", "x-0.mp4.latents.safetensors", "x-1.mp4.latents.safetensors"}
    assert {path.name for path in outputs_of(spec)} == names


def test_a_closed_queue_takes_nothing_and_keeps_what_waits(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.admit("a")
        rung: list[str] = []
        found.table.watch("a", lambda: rung.append("watch"))
        found.table.follow("a", lambda: rung.append("follow"))
        found.queue.close()
        assert sorted(rung) == ["follow", "watch"]
        assert found.queue.take(FACTS, first=False) is None
        with pytest.raises(Draining):
            found.admit("b")
        assert found.queue.wait_until_idle(0)
    with place(tmp_path) as found:
        assert found.take().id == "a"


def test_a_job_that_is_interrupted_begins_once_more(tmp_path: Path) -> None:
    inputs = b"what it was given"
    with place(tmp_path) as found:
        found.admit("a")
        found.folders.inputs_of("a").mkdir()
        (found.folders.inputs_of("a") / "x").write_bytes(inputs)
        found.take()
        found.queue.failed("a", Interrupted("drained"))
        job = found.table.get("a")
        assert (job.status, job.attempt, job.progress.stage, job.started_at) == (Status.QUEUED, 1, "queued", None)
        assert (found.folders.inputs_of("a") / "x").read_bytes() == inputs
    with place(tmp_path) as found:
        assert (found.folders.inputs_of("a") / "x").read_bytes() == inputs
        assert found.take().attempt == 2
        found.queue.failed("a", Interrupted("drained again", stage="sampling", step=3))
        error = found.table.get("a").error
        assert error is not None and error.code == "interrupted"


def test_a_job_that_was_cancelled_does_not_begin_again(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.admit("a")
        found.take()
        assert found.queue.cancel("a")
        # Here the process ends before the engine has heard of it.
    with place(tmp_path) as found:
        assert found.table.get("a").status is Status.CANCELLED


def test_what_an_earlier_server_left_waits_for_an_engine_that_loads(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.admit("a")
    with place(tmp_path) as found:
        found.admit("b")
        found.queue.fail_waiting(EngineDead("dead"), inherited=False)
        assert [found.table.get(job_id).status for job_id in "ab"] == [Status.QUEUED, Status.FAILED]


def test_a_waiting_job_is_deleted_with_all_it_had(found: Place) -> None:
    found.admit("a")
    found.folders.inputs_of("a").mkdir()
    rung: list[None] = []
    found.table.watch("a", lambda: rung.append(None))
    assert found.queue.delete("a").status is Status.CANCELLED
    with pytest.raises(JobNotFound):
        found.table.get("a")
    assert (found.queue.waiting, rung, [*found.folders.inputs.iterdir()]) == (0, [None], [])
    with pytest.raises(JobNotFound):
        found.queue.delete("a")


def test_a_finished_job_is_deleted_with_its_files_and_no_others(found: Place) -> None:
    found.done("a", n=2, save_latents=True)
    found.queue.progressed("a", Progress("sampling", preview=b"x"))
    other = found.folders.outputs / "a-0.txt"
    other.write_bytes(b"somebody's")
    assert found.queue.delete("a").status is Status.SUCCEEDED
    assert [*found.folders.outputs.iterdir()] == [other]
    assert [*found.folders.tails.iterdir(), *found.folders.previews.iterdir()] == []


@pytest.mark.parametrize("end", ["made", "failed", "interrupted"])
def test_a_deletion_wins_against_whatever_end_comes(found: Place, end: str) -> None:
    """The engine is asked to stop, and its answer crosses the deletion."""
    found.admit("a")
    job = found.take()
    asked = threading.Event()
    seen: list[Status | str] = []
    found.queue.on_stop = lambda _: asked.set()

    def look() -> None:
        try:
            seen.append(found.table.get("a").status)
        except JobNotFound:
            seen.append("gone")

    found.table.watch("a", look)
    gone = threading.Thread(target=lambda: seen.append(found.queue.delete("a").status))
    gone.start()
    assert asked.wait(PATIENCE)
    if end == "made":
        found.queue.succeeded("a", found.make(job))
    elif end == "failed":
        found.queue.failed("a", EngineDead("x"))
    else:
        found.queue.failed("a", Interrupted("drained"))
    gone.join(PATIENCE)
    # Whoever waited for it is told by its absence: it never ended for anybody else.
    assert seen == ["gone", Status.CANCELLED]
    assert [*found.folders.outputs.iterdir(), *found.folders.tails.iterdir(), *found.folders.tmp.iterdir()] == []
    assert found.queue.running is None


def test_two_deletions_at_once_are_one(found: Place) -> None:
    found.done("a")
    answers: list[str] = []

    def delete() -> None:
        try:
            answers.append(found.queue.delete("a").id)
        except JobNotFound:
            answers.append("gone")

    threads = [threading.Thread(target=delete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(answers) <= {"a", "gone"} and "a" in answers
    with pytest.raises(JobNotFound):
        found.table.get("a")


@pytest.mark.parametrize("end", ["fail_waiting", "take"])
def test_a_deletion_between_the_line_and_the_end_is_no_fault(
    found: Place, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    found.queue.admit(found.spec("a"), (), "other")
    # The first thing that an end does, and by then the job is in no line any more.
    monkeypatch.setattr(found.folders, "forget", lambda job_id: found.table.remove(job_id))
    if end == "take":
        assert found.queue.take(FACTS, first=False) is None
    else:
        found.queue.fail_waiting(EngineDead("x"))
    with pytest.raises(JobNotFound):
        found.table.get("a")


def test_an_end_stands_whoever_fails_to_hear_of_it(found: Place) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    found.queue.start()
    found.queue.on_end = broken
    assert found.done("a").status is Status.SUCCEEDED
    assert found.done("b").status is Status.SUCCEEDED


def test_the_file_of_a_waiting_job_taken_by_a_stranger_is_left_alone(found: Place) -> None:
    found.admit("a", output="x.mp4", n=2)
    job = found.take()
    made = found.make(job)
    stranger = found.folders.outputs / "x-1.mp4"
    stranger.write_bytes(b"somebody's")
    found.queue.succeeded("a", made)
    ended = found.table.get("a")
    assert (ended.status, ended.error and ended.error.code, ended.clip) == (Status.FAILED, "output_exists", None)
    assert stranger.read_bytes() == b"somebody's"
    assert [*found.folders.outputs.iterdir()] == [stranger]
    assert [*found.folders.tmp.iterdir(), *found.folders.tails.iterdir()] == []


def test_a_clip_that_is_written_over_expires_with_its_job(found: Place) -> None:
    found.done("a", output="x.mp4", n=2)
    later = found.done("b", content="new", output="x-1.mp4", overwrite=True)
    assert found.table.get("a").status is Status.EXPIRED
    # Deleting the earlier job takes its own file and not the one that is another's now.
    found.queue.delete("a")
    assert later.clip is not None and later.clip.output.read_bytes() == b"b 0 new"
    assert {path.name for path in found.folders.outputs.iterdir()} == {"x-1.mp4"}


def test_a_setback_of_the_clock_shows_nowhere(found: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = found.queue._clock
    job = found.admit("a")
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now.replace(year=now.year - 1))
    ended = found.take()
    assert ended.started_at is not None and ended.started_at < job.created_at
    found.queue.succeeded("a", found.make(ended))
    ended = found.table.get("a")
    assert ended.queue_seconds is not None and 0 <= ended.queue_seconds < PATIENCE
    assert ended.total_seconds is not None and 0 <= ended.total_seconds < PATIENCE
    found.queue.sweep()
    assert found.table.get("a").status is Status.SUCCEEDED


def test_waiting_jobs_are_told_how_long(found: Place) -> None:
    work = Work({"sampling": 1.0})
    for job_id in ("a", "b", "c", "d"):
        found.done(job_id, work=work)
    found.queue.engine_loaded(FACTS)
    assert found.queue.predict(work) is None
    for job_id in ("e", "f", "g"):
        found.done(job_id, work=work)
    assert found.queue.predict(work) == {"sampling": pytest.approx(1.0), "total": pytest.approx(1.0)}
    for job_id in ("h", "i", "j"):
        found.admit(job_id, work=work, order=Order(priority=1 if job_id == "j" else 0))
    found.queue.tick()
    assert [found.table.get(job_id).progress.eta_seconds for job_id in "hij"] == [pytest.approx(s) for s in (1, 2, 0)]
    found.take()
    found.queue.progressed("j", Progress("sampling", 1, 4, 0.25, eta_seconds=7.0))
    found.queue.tick()
    assert [found.table.get(job_id).progress.eta_seconds for job_id in "jhi"] == [7.0, 7.0, pytest.approx(8.0)]


def test_a_thousand_submissions_end_once_each(quick: Path) -> None:
    count, threads = 1000, 4
    with place(quick, limit=count) as found:
        ended: list[str] = []
        found.queue.on_end = lambda job: ended.append(job.id)
        found.queue.start()
        begun: list[str] = []

        def compute() -> None:
            while len(begun) < count:
                if (job := found.queue.take(FACTS, first=False)) is not None:
                    begun.append(job.id)
                    found.queue.failed(job.id, OutOfMemory("x"))
                else:
                    time.sleep(0.001)

        def submit(first: int) -> None:
            for number in range(first, count, threads):
                found.admit(f"job{number:04}")

        engine = threading.Thread(target=compute)
        clients = [threading.Thread(target=submit, args=(first,)) for first in range(threads)]
        for thread in (engine, *clients):
            thread.start()
        for thread in (engine, *clients):
            thread.join(60)
        assert len(begun) == len(set(begun)) == len(ended) == len(set(ended)) == count
        with found.table.store.reading() as connection:
            rows = connection.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall()
        assert rows == [("failed", count)]

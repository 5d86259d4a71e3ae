"""The engine process from outside: what ends a job, what ends a process, what ends the service, and what is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from h3runtime.core import GenerateSpec, Progress, SamplerSettings, Task
from h3runtime.errors import InternalError, Interrupted, JobCancelled, Loading, NotReady
from h3runtime.jobs import engine_process, in_hand, limits, supervisor
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.jobs.files import Folders
from h3runtime.jobs.limits import Running
from h3runtime.jobs.queue import JobQueue
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.supervisor import Limits, Supervisor
from h3runtime.jobs.table import Job, JobTable, Status
from h3runtime.settings import Settings

PATIENCE = 60.0
LIMIT = 30.0
"""Seconds of each stage. Nobody waits for them: see `Clock`."""


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


class Clock:
    """The supervisor's steady clock, which a test puts on instead of waiting: limits can be long then, and a machine
    that stands still for a while exceeds none."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def outlast(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Let so long pass, and once more if a sign of life was on its way meanwhile."""
        end = time.monotonic() + PATIENCE
        while not is_over():
            assert time.monotonic() < end
            self.ahead += seconds
            again = time.monotonic() + 2.0
            while not is_over() and time.monotonic() < again:
                time.sleep(0.005)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (supervisor, engine_process, limits, in_hand):
        monkeypatch.setattr(module, "time", found)
    return found


class Bench:
    def __init__(self, folder: Path, engine: tuple[Any, ...], limits: Limits, factory: str) -> None:
        self.folders = Folders(Settings(data_dir=folder))
        self.table = JobTable(JobStore(self.folders.store))
        self.queue = JobQueue(self.table, self.folders, 16)
        self.supervisor = Supervisor(EngineRecipe(factory, engine), self.queue, limits)
        self.count = 0
        self.reasons: list[str] = []
        self._note_restarts()

    def add(self, prompt: str, steps: int = 2, n: int = 1) -> str:
        self.count += 1
        job_id = f"job{self.count}"
        return self.queue.admit(replace(self.spec(job_id, steps), prompt=prompt, n=n), ()).id

    def spec(self, job_id: str, steps: int = 2) -> GenerateSpec:
        scratch = self.folders.scratch_of(job_id)
        output = self.folders.outputs / f"{job_id}.mp4"
        return GenerateSpec(job_id, Task.T2VA, "x", 64, 64, 5, SamplerSettings(steps, seed=1), output, scratch)

    def _note_restarts(self) -> None:
        """A restart may be over before anybody looks."""
        restart = self.supervisor._view.restart

        def noted(reason: str) -> None:
            restart(reason)
            self.reasons.append(reason)

        self.supervisor._view.restart = noted  # type: ignore[method-assign]

    def restarted(self) -> str:
        """Why, once it has been."""
        return str(self.until(lambda: self.reasons, bool)[-1])

    def has_ended(self, job_id: str) -> bool:
        return self.table.get(job_id).status.ended

    def ended(self, job_id: str) -> Job:
        return self.until(lambda: self.table.get(job_id), lambda job: job.status.ended)

    def in_stage(self, job_id: str, stage: str, step: int = 0) -> None:
        """Once the engine has told so."""

        def is_there(job: Running | None) -> bool:
            told = job is not None and job.job_id == job_id and job.stage == stage
            return told and job is not None and job.step is not None and job.step >= step

        self.until(lambda: self.supervisor._job._running, is_there)

    def status(self, *wanted: EngineStatus) -> None:
        self.until(lambda: self.supervisor.state, lambda state: state.status in wanted)

    def until(self, read: Any, is_right: Any) -> Any:
        end = time.monotonic() + PATIENCE
        while not is_right(found := read()):
            assert time.monotonic() < end, found
            time.sleep(0.005)
        return found


@contextmanager
def bench(
    folder: Path, engine: tuple[Any, ...] = (), *, factory: str = "tests.fake_engine:create", **wanted: Any
) -> Iterator[Bench]:
    stages = dict.fromkeys(("conditioning", "sampling", "video_decode", "audio_decode", "mux"), LIMIT)
    found = Bench(folder, engine, Limits(**{"stages": stages, "stop_grace": 0.5} | wanted), factory)
    found.supervisor.start()
    try:
        yield found
    finally:
        found.supervisor.close()
        found.table.close()
        found.folders.close()


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_frozen(pid)


def wait_frozen(pid: int) -> None:
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.usefixtures("fresh_engines")
def test_jobs_run_one_at_a_time_in_order_and_the_engine_loads_once(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with bench(tmp_path / "data", (0.0, "", journal)) as found:
        jobs = [found.add("x") for _ in range(3)]
        for job_id in jobs:
            job = found.ended(job_id)
            assert (job.status, job.first_after_start) == ("succeeded", job_id == jobs[0])
    lines = [line.split(maxsplit=1) for line in journal.read_text().splitlines()]
    assert [line[1] for line in lines] == ["load", *(f"generate {job_id}" for job_id in jobs), "close"]
    assert len({line[0] for line in lines}) == 1
    assert int(lines[0][0]) != os.getpid()


@pytest.mark.usefixtures("fresh_engines")
@pytest.mark.parametrize("prompt", ["die_at=sampling", "segfault_at=mux", "wedge_at=video_decode"])
def test_a_death_fails_one_job_and_the_next_one_succeeds(tmp_path: Path, prompt: str) -> None:
    with bench(tmp_path) as found:
        first, second = found.add(prompt), found.add("x")
        job = found.ended(first)
        assert job.error is not None
        assert (job.status, job.error.code) == ("failed", "engine_dead")
        assert getattr(job.error, "stage", None) == prompt.partition("=")[2]
        assert "engine" in found.restarted() or "device" in found.restarted()
        after = found.ended(second)
        assert (after.status, after.first_after_start) == ("succeeded", True)
        assert found.supervisor.state.restarts == 1


@pytest.mark.parametrize("stage", ["conditioning", "sampling", "video_decode", "mux"])
def test_a_silent_stage_is_killed_in_its_own_time(tmp_path: Path, clock: Clock, stage: str) -> None:
    with bench(tmp_path, stages={stage: LIMIT}) as found:
        found.status(EngineStatus.READY)
        pid = found.supervisor.pid
        assert pid is not None
        job_id = found.add(f"hang_at={stage}")
        found.in_stage(job_id, stage)
        clock.ahead += LIMIT / 2
        assert not found.has_ended(job_id)
        clock.outlast(LIMIT, lambda: found.has_ended(job_id))
        job = found.table.get(job_id)
        assert job.error is not None
        assert (job.error.code, getattr(job.error, "stage", None)) == ("timeout", stage)
        assert is_gone(pid)


def test_slow_but_moving_stages_are_left_alone(tmp_path: Path, clock: Clock) -> None:
    """Ten steps of two thirds of the limit each."""
    with bench(tmp_path) as found:
        progressed = found.queue.progressed

        def later(job_id: str, progress: Progress) -> None:
            clock.ahead += LIMIT * 2 / 3 if progress.stage == "sampling" else 0.0
            progressed(job_id, progress)

        found.queue.progressed = later  # type: ignore[method-assign]
        assert found.ended(found.add("x", steps=10)).status == "succeeded"
        assert clock.ahead > 6 * LIMIT


@pytest.mark.usefixtures("fresh_engines")
def test_what_a_killed_engine_had_started_is_gone_too(tmp_path: Path, clock: Clock) -> None:
    journal = tmp_path / "journal"
    with bench(tmp_path / "data", (0.0, "", journal)) as found:
        job_id = found.add("orphan_at=mux")
        found.until(lambda: journal.exists() and journal.read_text(), lambda text: text and " child " in text)
        clock.outlast(2 * LIMIT, lambda: found.has_ended(job_id))
        assert found.table.get(job_id).error is not None
        child = next(line.split()[-1] for line in journal.read_text().splitlines() if " child " in line)
        assert is_gone(int(child))


@pytest.mark.usefixtures("fresh_engines")
def test_a_frozen_process_is_noticed_even_when_idle(tmp_path: Path, clock: Clock) -> None:
    with bench(tmp_path) as found:
        found.status(EngineStatus.READY)
        pid = found.supervisor.pid
        assert pid is not None
        freeze(pid)
        clock.outlast(61, lambda: bool(found.reasons))
        assert "no sign of life" in found.restarted()
        assert is_gone(pid)
        found.status(EngineStatus.READY)


def test_questions_do_not_hold_up_who_is_to_notice_a_frozen_process(tmp_path: Path, clock: Clock) -> None:
    with bench(tmp_path) as found:
        found.status(EngineStatus.READY)
        pid = found.supervisor.pid
        assert pid is not None
        freeze(pid)
        # Together more than the pipe holds; none gets an answer.
        spec = replace(found.spec("y"), prompt="x" * 28_000)
        for _ in range(20):
            with pytest.raises(NotReady):
                found.supervisor.estimate(spec, 0.01)
        clock.outlast(61, lambda: bool(found.reasons))
        assert is_gone(pid)


def test_beyond_the_budget_it_is_dead_and_waiting_jobs_fail(tmp_path: Path) -> None:
    with bench(tmp_path, restarts=1) as found:
        jobs = [found.add("die_at=sampling"), found.add("die_at=sampling"), found.add("x")]
        for job_id in jobs:
            job = found.ended(job_id)
            assert job.error is not None
            assert job.error.code == "engine_dead"
        assert found.supervisor.state.status is EngineStatus.DEAD
        assert "died 2 times" in found.supervisor.state.reason


def test_a_checkpoint_that_cannot_be_loaded_is_final_and_named(tmp_path: Path) -> None:
    with bench(tmp_path, (0.0, "checkpoint")) as found:
        found.status(EngineStatus.DEAD)
        reason = found.supervisor.state.reason
        for word in ("dit.safetensors", "blocks.0.attn.qkv_proj.weight", "is missing", "x.weight", "has shape [1]"):
            assert word in reason
        assert found.supervisor.state.restarts == 0
        job = found.ended(found.add("x"))
        assert job.error is not None
        assert job.error.code == "engine_dead"


def test_a_bug_while_loading_is_final(tmp_path: Path) -> None:
    with bench(tmp_path, (0.0, "bug")) as found:
        found.status(EngineStatus.DEAD)
        assert "RuntimeError: a bug" in found.supervisor.state.reason


def test_a_file_that_cannot_be_read_while_loading_is_told_without_its_path(tmp_path: Path) -> None:
    with bench(tmp_path, (0.0, "file")) as found:
        found.status(EngineStatus.DEAD)
        assert "FileNotFoundError: No such file" in found.supervisor.state.reason
        assert "secret" not in found.supervisor.state.reason


def test_a_death_while_loading_uses_up_the_budget(tmp_path: Path) -> None:
    with bench(tmp_path, (0.0, "die"), restarts=1) as found:
        found.status(EngineStatus.DEAD)
        assert "ended with code 7" in found.supervisor.state.reason
        assert found.supervisor.state.restarts == 1


@pytest.mark.usefixtures("fresh_engines")
def test_a_factory_that_is_not_there_is_final(tmp_path: Path) -> None:
    folders = Folders(Settings(data_dir=tmp_path))
    found = Supervisor(EngineRecipe("no.such:thing"), JobQueue(JobTable(), folders, 1), Limits())
    found.start()
    end = time.monotonic() + PATIENCE
    while found.state.status is not EngineStatus.DEAD and time.monotonic() < end:
        time.sleep(0.01)
    assert "no.such" in found.state.reason or "'no'" in found.state.reason
    found.close()
    folders.close()


def test_a_process_that_cannot_be_started_is_a_reason(tmp_path: Path) -> None:
    unpicklable = (lambda: None,)
    with bench(tmp_path, unpicklable, restarts=1) as found:
        found.status(EngineStatus.DEAD)
        assert "could not be started" in found.supervisor.state.reason


def test_a_bug_of_ours_costs_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path) as found:

        def broken(*_: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("a bug")

        monkeypatch.setattr(found.queue, "succeeded", broken)
        first, second = found.add("x"), found.add("x")
        error = found.ended(first).error
        assert error is not None and error.code == "engine_dead"
        assert found.ended(second).status is Status.SUCCEEDED


def test_a_bug_of_ours_after_the_end_costs_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path) as found:
        succeeded = found.queue.succeeded

        def broken(*given: Any) -> None:
            monkeypatch.undo()
            succeeded(*given)
            raise RuntimeError("a bug")

        monkeypatch.setattr(found.queue, "succeeded", broken)
        for job_id in (found.add("x"), found.add("x")):
            assert found.ended(job_id).status is Status.SUCCEEDED


def test_a_bug_that_stays_is_told_by_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with bench(tmp_path) as found:
        monkeypatch.setattr(found.queue, "failed", broken)
        found.add("fail_at=sampling")
        waiting = found.add("x")
        found.status(EngineStatus.DEAD)
        assert found.supervisor.state.reason == "the supervisor met an internal error"
        assert found.ended(waiting).status is Status.FAILED
        monkeypatch.undo()


def test_cancelling_what_hears_nothing_ends_it_all_the_same(tmp_path: Path, clock: Clock) -> None:
    with bench(tmp_path) as found:
        deaf, second = found.add("hang_at=sampling"), found.add("x")
        found.in_stage(deaf, "sampling")
        found.supervisor.cancel(deaf)
        clock.outlast(2 * LIMIT, lambda: found.has_ended(deaf))
        assert found.ended(deaf).status == "cancelled"
        assert found.ended(second).status == "succeeded"


def test_a_cancel_waits_for_the_end_of_a_long_step(tmp_path: Path, clock: Clock) -> None:
    """However short the grace is: a step that takes its time is no deaf engine."""
    with bench(tmp_path, stop_grace=0.1) as found:
        found.status(EngineStatus.READY)
        pid = found.supervisor.pid
        job_id = found.add(f"x deaf_until={tmp_path / 'over'}", steps=3)
        found.in_stage(job_id, "sampling")
        found.supervisor.cancel(job_id)
        found.until(lambda: found.supervisor._job._running, lambda job: job is None or job.stop_sent is not None)
        clock.ahead += LIMIT / 2
        time.sleep(2 * supervisor.LOOK_SECONDS)
        assert found.table.get(job_id).status is Status.RUNNING
        (tmp_path / "over").touch()
        assert found.ended(job_id).status == "cancelled"
        assert found.ended(found.add("x")).status == "succeeded"
        assert found.supervisor.pid == pid


def test_the_grace_of_a_cancel_is_three_of_the_job_s_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    allowed, job = Limits({"sampling": 600.0}), Running("a")
    for step, moment in enumerate((150.0, 152.0, 157.0, 159.0)):
        now = moment
        job.advance(Progress("sampling", step, 9))
    job.stop_sent = 160.0
    cancel, leave = JobCancelled("x"), Interrupted("x")
    now = 174.9
    assert job.overdue(allowed, cancel) is None
    assert job.overdue(allowed, leave) is leave
    now = 175.1
    assert job.overdue(allowed, cancel) is cancel


def test_a_stop_reaches_its_own_job_and_no_other(tmp_path: Path) -> None:
    """The two moments at which a wish without a name goes astray: a job that the queue has handed out but the
    supervisor doesn't hold yet, and one that ends just after the queue said that it runs."""
    with bench(tmp_path) as found:
        take = found.queue.take

        def take_and_cancel(*given: Any, **named: Any) -> Job | None:
            job = take(*given, **named)
            if job is not None and job.id == "job1":
                found.supervisor.cancel(job.id)
            return job

        found.queue.take = take_and_cancel  # type: ignore[method-assign]
        assert found.ended(found.add("x hold")).status == "cancelled"
        second = found.add(f"x until={tmp_path / 'told'}")
        found.in_stage(second, "sampling")
        found.queue.cancel = lambda _: True  # type: ignore[method-assign]
        found.supervisor.cancel("job1")
        time.sleep(0.1)
        (tmp_path / "told").touch()
        assert found.ended(second).status == "succeeded"


def test_no_process_is_named_once_it_is_gone(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        found.status(EngineStatus.READY)
        found.supervisor.close()
        assert found.supervisor.pid is None


@pytest.mark.usefixtures("fresh_engines")
def test_closing_puts_what_computes_back_into_the_line(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        jobs = [found.add("x hold"), found.add("x")]
        found.in_stage(jobs[0], "sampling")
        pid = found.supervisor.pid
        found.supervisor.close()
        assert [(job.status, job.attempt) for job in map(found.table.get, jobs)] == [("queued", 1), ("queued", 0)]
        assert pid is not None
        assert is_gone(pid)


@pytest.mark.parametrize("seconds", [0.0, PATIENCE])
def test_a_drain_lets_a_job_finish_or_puts_it_back_and_it_is_made_after_a_restart(
    tmp_path: Path, seconds: float
) -> None:
    over = tmp_path / "over"

    def end_once_it_drains() -> None:
        found.until(lambda: found.queue.closed, bool)
        over.touch()

    with bench(tmp_path, stop_grace=20.0) as found:
        jobs = [found.add(f"x until={over}"), found.add("x")]
        found.in_stage(jobs[0], "sampling")
        ending = threading.Thread(target=end_once_it_drains)
        if seconds:
            ending.start()
        found.supervisor.drain(seconds)
        assert found.table.get(jobs[0]).status == ("succeeded" if seconds else "queued")
        assert found.table.get(jobs[1]).status == "queued"
        found.table.close()
    over.touch()
    with bench(tmp_path) as found:
        assert [found.ended(job_id).status for job_id in jobs] == ["succeeded", "succeeded"]
        assert found.table.get(jobs[0]).attempt == (1 if seconds else 2)


def test_an_estimate_is_told_while_a_job_computes(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        found.status(EngineStatus.READY)
        job_id = found.add("x hold")
        found.in_stage(job_id, "sampling")
        told = found.supervisor.estimate(replace(found.spec("y"), prompt=f"peak={2**40}"), PATIENCE)
        assert (told.peak_bytes, told.fits, told.would_fit) == (2**40, False, "64x64, 5 frames")
        # One that takes its time holds up neither a stop nor the next one's own error.
        with pytest.raises(NotReady, match="within 0"):
            found.supervisor.estimate(replace(found.spec("y"), prompt="weigh_seconds=0.5"), 0.1)
        found.supervisor.cancel(job_id)
        assert found.ended(job_id).status == "cancelled"
        with pytest.raises(InternalError) as raised:
            found.supervisor.estimate(replace(found.spec("y"), prompt="weigh_bug"), PATIENCE)
        assert "secret" not in raised.value.message


def test_without_an_engine_there_is_no_estimate(tmp_path: Path) -> None:
    with bench(tmp_path / "slow", (30.0,)) as found, pytest.raises(Loading):
        found.supervisor.estimate(found.spec("y"))
    with bench(tmp_path / "dead", (0.0, "checkpoint")) as found:
        found.status(EngineStatus.DEAD)
        with pytest.raises(NotReady):
            found.supervisor.estimate(found.spec("y"))


def test_an_engine_that_dies_takes_open_questions_with_it(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        found.status(EngineStatus.READY)
        told: list[str] = []

        def ask() -> None:
            try:
                found.supervisor.estimate(replace(found.spec("y"), prompt="weigh_seconds=3600"), PATIENCE)
            except NotReady as error:
                told.append(error.code)

        asking = threading.Thread(target=ask)
        asking.start()
        found.until(lambda: found.supervisor._questions._carried, bool)
        found.ended(found.add("die_at=sampling"))
        asking.join(PATIENCE)
        assert told == ["loading"]


def test_previews_and_several_clips_cross_the_pipe(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        job = found.ended(found.add("x", n=3))
        assert job.clip is not None
        names = [clip.output.name for clip in (job.clip, *job.clip.variants)]
        assert names == [f"{job.id}-{index}.mp4" for index in range(3)]
        assert sorted(path.name for path in found.folders.outputs.iterdir()) == names
        preview = found.queue.preview_of(job.id)
        assert preview is not None and preview.read_bytes().startswith(b"\x89PNG")

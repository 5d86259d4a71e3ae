"""The engine process from outside: what ends a job, what ends a process, what ends the service, and what is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from h3runtime.core import GenerateSpec, SamplerSettings, Task
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.jobs.files import Folders
from h3runtime.jobs.queue import JobQueue
from h3runtime.jobs.supervisor import Limits, Supervisor
from h3runtime.jobs.table import Job, JobTable
from h3runtime.settings import Settings

PATIENCE = 30.0


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


class Bench:
    def __init__(self, folder: Path, engine: tuple[Any, ...], limits: Limits, factory: str) -> None:
        self.folders = Folders(Settings(data_dir=folder))
        self.table = JobTable()
        self.queue = JobQueue(self.table, self.folders, 16)
        self.supervisor = Supervisor(EngineRecipe(factory, engine), self.queue, limits)
        self.count = 0

    def add(self, prompt: str, steps: int = 2) -> str:
        self.count += 1
        job_id = f"job{self.count}"
        scratch = self.folders.scratch_of(job_id)
        scratch.mkdir()
        sampling = SamplerSettings(steps, seed=1)
        output = self.folders.outputs / f"{job_id}.mp4"
        spec = GenerateSpec(job_id, Task.T2VA, prompt, 64, 64, 5, sampling, output, scratch)
        return self.queue.admit(spec, ()).id

    def ended(self, job_id: str) -> Job:
        return self.until(lambda: self.table.get(job_id), lambda job: job.status.ended)

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
    folder: Path, engine: tuple[Any, ...] = (), *, factory: str = "tests.fake_engine:create", **limits: Any
) -> Iterator[Bench]:
    stages = dict.fromkeys(("conditioning", "sampling", "video_decode", "audio_decode", "mux"), 20.0)
    found = Bench(folder, engine, Limits(**{"stages": stages, "stop_grace": 0.5} | limits), factory)
    found.supervisor.start()
    try:
        yield found
    finally:
        found.supervisor.close()
        found.folders.close()


def is_gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


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


@pytest.mark.parametrize("prompt", ["die_at=sampling", "segfault_at=mux", "wedge_at=video_decode"])
def test_a_death_fails_one_job_and_the_next_one_succeeds(tmp_path: Path, prompt: str) -> None:
    with bench(tmp_path) as found:
        first, second = found.add(prompt), found.add("x")
        job = found.ended(first)
        assert job.error is not None
        assert (job.status, job.error.code) == ("failed", "engine_dead")
        assert getattr(job.error, "stage", None) == prompt.partition("=")[2]
        found.status(EngineStatus.RESTARTING)
        assert "engine" in found.supervisor.state.reason or "device" in found.supervisor.state.reason
        after = found.ended(second)
        assert (after.status, after.first_after_start) == ("succeeded", True)
        assert found.supervisor.state.restarts == 1


@pytest.mark.parametrize("stage", ["conditioning", "sampling", "video_decode", "mux"])
def test_a_silent_stage_is_killed_in_its_own_time(tmp_path: Path, stage: str) -> None:
    with bench(tmp_path, stages={stage: 0.3}) as found:
        found.status(EngineStatus.READY)
        pid = found.supervisor.pid
        assert pid is not None
        job = found.ended(found.add(f"hang_at={stage}"))
        assert job.error is not None
        assert (job.error.code, getattr(job.error, "stage", None)) == ("timeout", stage)
        assert job.total_seconds is not None
        assert job.total_seconds < 5
        assert is_gone(pid)


def test_slow_but_moving_stages_are_left_alone(tmp_path: Path) -> None:
    with bench(tmp_path, stages={"sampling": 0.4, "conditioning": 5.0}) as found:
        assert found.ended(found.add("x step_seconds=0.1", steps=10)).status == "succeeded"


def test_what_a_killed_engine_had_started_is_gone_too(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with bench(tmp_path / "data", (0.0, "", journal), stages={"mux": 0.3}) as found:
        assert found.ended(found.add("orphan_at=mux")).error is not None
        child = next(line.split()[-1] for line in journal.read_text().splitlines() if " child " in line)
        assert is_gone(int(child))


def test_a_frozen_process_is_noticed_even_when_idle(tmp_path: Path) -> None:
    with bench(tmp_path, heartbeat=2.0) as found:
        found.status(EngineStatus.READY)
        pid = found.supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        found.status(EngineStatus.RESTARTING)
        assert "no sign of life" in found.supervisor.state.reason
        assert is_gone(pid)
        found.status(EngineStatus.READY)


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


def test_a_factory_that_is_not_there_is_final(tmp_path: Path) -> None:
    folders = Folders(Settings(data_dir=tmp_path))
    supervisor = Supervisor(EngineRecipe("no.such:thing"), JobQueue(JobTable(), folders, 1), Limits())
    supervisor.start()
    end = time.monotonic() + PATIENCE
    while supervisor.state.status is not EngineStatus.DEAD and time.monotonic() < end:
        time.sleep(0.01)
    assert "no.such" in supervisor.state.reason or "'no'" in supervisor.state.reason
    supervisor.close()
    folders.close()


def test_a_process_that_cannot_be_started_is_a_reason(tmp_path: Path) -> None:
    unpicklable = (lambda: None,)
    with bench(tmp_path, unpicklable, restarts=1) as found:
        found.status(EngineStatus.DEAD)
        assert "could not be started" in found.supervisor.state.reason


def test_cancelling_what_hears_nothing_ends_it_all_the_same(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        deaf, second = found.add("hang_at=sampling"), found.add("x")
        found.until(lambda: found.table.get(deaf), lambda job: job.progress.stage == "sampling")
        found.supervisor.cancel(deaf)
        assert found.ended(deaf).status == "cancelled"
        assert found.ended(second).status == "succeeded"


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
        assert found.ended(found.add("x step_seconds=0.1", steps=20)).status == "cancelled"
        second = found.add("x step_seconds=0.02", steps=20)
        found.until(lambda: found.table.get(second), lambda job: job.progress.stage == "sampling")
        found.queue.cancel = lambda _: True  # type: ignore[method-assign]
        found.supervisor.cancel("job1")
        assert found.ended(second).status == "succeeded"


def test_no_process_is_named_once_it_is_gone(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        found.status(EngineStatus.READY)
        found.supervisor.close()
        assert found.supervisor.pid is None


def test_closing_interrupts_what_computes_and_what_waits(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        jobs = [found.add("x step_seconds=0.1", steps=100), found.add("x")]
        found.until(lambda: found.table.get(jobs[0]), lambda job: job.progress.stage == "sampling")
        pid = found.supervisor.pid
        found.supervisor.close()
        assert [getattr(found.ended(job_id).error, "code", None) for job_id in jobs] == ["interrupted"] * 2
        assert pid is not None
        assert is_gone(pid)

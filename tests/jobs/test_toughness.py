"""Every stage and every way to die in it: one job fails with its code, stage and step, and whoever waits is served.

The engine is a fake that dies for real, in a real process. What the real engine makes of a library's exceptions is in
`tests/e2e/test_survival.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from h3runtime.errors import JobError
from h3runtime.jobs import engine_process
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.jobs.processes import oom_kills
from h3runtime.jobs.supervisor import Limits
from h3runtime.jobs.table import Job
from h3runtime.settings import Settings
from tests.jobs.dying_engine import NAMELESS
from tests.jobs.test_supervisor import LIMIT, Bench, Clock, bench, clock, is_gone, quiet, wait_frozen

__all__ = ["clock", "quiet"]

STAGES = ("conditioning", "sampling", "audio_decode", "video_decode", "mux")
STEPS = {"sampling": 2}
"""Where in a stage the end comes; elsewhere before anything is done."""
DEATHS = {
    "sigkill": "the engine process was killed by SIGKILL",
    "sigsegv": "the engine process was killed by SIGSEGV",
    "signal": f"the engine process was killed by signal {NAMELESS}",
    "exit": "the engine process ended with code 3",
    "device": "the device failed: CUDA error: an illegal memory access was encountered",
}


def dying(folder: Path, plan: tuple[str, ...] = (), **limits: Any) -> AbstractContextManager[Bench]:
    engine = (folder / "engine", plan)
    return bench(folder / "data", engine, factory="tests.jobs.dying_engine:create", **limits)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A server whose budget outlasts the module, so that each test costs one restart and no more."""
    with dying(tmp_path_factory.mktemp("patient"), restarts=10_000) as found:
        yield found


def how(job: Job) -> tuple[str, str | None, int | None]:
    """Code, stage and step of a job that failed."""
    assert isinstance(job.error, JobError), job
    return job.error.code, job.error.stage, job.error.step


def place(stage: str) -> str:
    return f"{stage}:{STEPS.get(stage, 0)}"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", DEATHS)
def test_a_death_fails_its_job_and_the_waiting_one_runs(patient: Bench, stage: str, way: str) -> None:
    before = patient.supervisor.state.restarts
    first, second = patient.add(f"{way}@{place(stage)}", steps=4), patient.add("x")
    job = patient.ended(first)
    assert how(job) == ("engine_dead", stage, STEPS.get(stage, 0))
    assert job.error is not None and job.error.message == DEATHS[way]
    after = patient.ended(second)
    assert (after.status, after.first_after_start) == ("succeeded", True)
    assert patient.supervisor.state.restarts == before + 1


def test_a_death_before_the_first_sign_of_life_is_one_of_conditioning(patient: Bench) -> None:
    first, second = patient.add("exit@silence"), patient.add("x")
    assert how(patient.ended(first)) == ("engine_dead", "conditioning", None)
    assert patient.ended(second).status == "succeeded"


@pytest.mark.parametrize("stage", STAGES)
def test_memory_that_is_full_costs_one_job_and_no_process(patient: Bench, stage: str) -> None:
    patient.status(EngineStatus.READY)
    pid = patient.supervisor.pid
    first, second = patient.add(f"memory@{place(stage)}", steps=4), patient.add("x")
    assert how(patient.ended(first)) == ("out_of_memory", stage, STEPS.get(stage, 0))
    assert patient.ended(second).status == "succeeded"
    assert patient.supervisor.pid == pid


@pytest.mark.parametrize("stage", STAGES)
def test_what_the_kernel_killed_for_want_of_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(engine_process, "oom_kills", lambda: int((tmp_path / "engine" / "starved").exists()))
    with dying(tmp_path) as found:
        first, second = found.add(f"starved@{place(stage)}", steps=4), found.add("x")
        assert how(found.ended(first)) == ("out_of_memory", stage, STEPS.get(stage, 0))
        assert "memory is full" in found.restarted()
        assert found.ended(second).status == "succeeded"
        # The kernel's count stays where it is, and the next SIGKILL is somebody else's.
        assert how(found.ended(found.add(f"sigkill@{stage}")))[0] == "engine_dead"


def test_the_kernels_count_is_read(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 5\noom_kill 17\noom_kill_disable 3\n")
    assert oom_kills(vmstat) == 17
    vmstat.write_text("nr_free_pages 5\noom_kill\n")
    assert oom_kills(vmstat) == oom_kills(tmp_path / "none") == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_hangs_is_ended_in_its_own_time(tmp_path: Path, clock: Clock, stage: str) -> None:
    with dying(tmp_path, stages={stage: LIMIT}) as found:
        found.status(EngineStatus.READY)
        pid = found.supervisor.pid
        first, second = found.add(f"hang@{place(stage)}", steps=4), found.add("x")
        found.in_stage(first, stage, STEPS.get(stage, 0))
        clock.outlast(2 * LIMIT, lambda: found.has_ended(first))
        assert how(found.ended(first)) == ("timeout", stage, STEPS.get(stage, 0))
        assert found.ended(second).status == "succeeded"
        assert pid is not None and is_gone(pid)


def test_a_process_that_freezes_in_a_job_is_found_out_by_its_heartbeat(tmp_path: Path, clock: Clock) -> None:
    with dying(tmp_path, heartbeat=LIMIT, stages={}) as found:
        first, second = found.add("freeze@sampling:2", steps=4), found.add("x")
        found.in_stage(first, "sampling", 2)
        assert found.supervisor.pid is not None
        wait_frozen(found.supervisor.pid)
        clock.outlast(2 * LIMIT, lambda: found.has_ended(first))
        job = found.ended(first)
        assert how(job) == ("engine_dead", "sampling", 2)
        assert job.error is not None and f"no sign of life for {LIMIT:g} s" in job.error.message
        assert found.ended(second).status == "succeeded"


@pytest.mark.parametrize("stage", ["loading", "warming"])
@pytest.mark.parametrize("way", [*DEATHS, "memory"])
def test_a_death_while_starting_is_one_more_start(tmp_path: Path, stage: str, way: str) -> None:
    with dying(tmp_path, (f"{way}@{stage}",)) as found:
        found.status(EngineStatus.READY)
        assert found.supervisor.state.restarts == 1
        assert found.ended(found.add("x")).status == "succeeded"


@pytest.mark.parametrize(("way", "told"), [("memory", "the host's memory is full"), ("device", "the device failed")])
def test_starting_in_vain_ends_with_the_budget_and_says_why(tmp_path: Path, way: str, told: str) -> None:
    with dying(tmp_path, (f"{way}@loading", f"{way}@warming"), restarts=1) as found:
        found.status(EngineStatus.DEAD)
        assert told in found.supervisor.state.reason
        assert "it has died 2 times" in found.supervisor.state.reason


def test_a_waiting_job_outlives_starts_that_fail(tmp_path: Path) -> None:
    with dying(tmp_path, ("", "exit@loading", "memory@warming")) as found:
        first, second = found.add("sigkill@mux"), found.add("x")
        assert how(found.ended(first))[0] == "engine_dead"
        assert found.ended(second).status == "succeeded"
        assert found.supervisor.state.restarts == 3


def test_a_warm_up_that_hangs_is_started_again(tmp_path: Path, clock: Clock) -> None:
    with dying(tmp_path, ("hang@warming",), stages={"warming": LIMIT}) as found:
        found.until(lambda: found.supervisor.state.stage, lambda stage: stage == "warming")
        clock.outlast(2 * LIMIT, lambda: bool(found.reasons))
        assert found.restarted() == f"the stage warming made no progress for {LIMIT:g} s"
        found.status(EngineStatus.READY)


# What a forked one has open is not what a fresh one has.
@pytest.mark.usefixtures("fresh_engines")
def test_a_death_is_noticed_though_a_child_holds_the_pipe(tmp_path: Path) -> None:
    with dying(tmp_path) as found:
        first, second = found.add("orphan@sampling:2", steps=4), found.add("x")
        began = time.monotonic()
        assert how(found.ended(first)) == ("engine_dead", "sampling", 2)
        # Not by the heartbeat, which is given a minute.
        assert time.monotonic() - began < 50
        assert is_gone(int((tmp_path / "engine" / "orphan").read_text()))
        assert found.ended(second).status == "succeeded"


def test_deaths_far_apart_do_not_add_up(tmp_path: Path) -> None:
    with dying(tmp_path, restarts=1, restart_window=0.2) as found:
        for _ in range(3):
            assert how(found.ended(found.add("exit@sampling")))[0] == "engine_dead"
            assert found.ended(found.add("x")).status == "succeeded"
            time.sleep(0.2)
        assert found.supervisor.state.restarts == 3


def test_limits_are_the_settings() -> None:
    limits = Limits.from_settings(Settings(restarts=7, restart_window=60, timeout_step=11, timeout_mux=12))
    assert (limits.restarts, limits.restart_window) == (7, 60)
    assert (limits.of_stage("sampling"), limits.of_stage("mux"), limits.of_stage("warming")) == (11, 27, 938)
    assert limits.of_stage("conditioning") == limits.of_stage("what is not there") == 300

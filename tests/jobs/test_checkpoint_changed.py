"""A job is made with the weights it was admitted under, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from h3runtime.errors import CheckpointChanged
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.jobs.engine_state import EngineStatus
from tests.api.server import SMALL, running, until
from tests.jobs.test_supervisor import bench

FACTORY = "tests.jobs.changing_engine:create"


def test_jobs_of_the_old_weights_fail_and_new_ones_are_made(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_text("a:1")
    with bench(tmp_path / "data", (file,), factory=FACTORY) as found:
        first = found.add(f"x until={tmp_path / 'changed'} die_at=video_decode")
        waiting = [found.add("x") for _ in range(2)]
        found.until(lambda: found.table.get(first).status, lambda status: status == "running")
        file.write_text("b:2")
        (tmp_path / "changed").touch()
        assert found.ended(first).error.code == "engine_dead"
        for job_id in waiting:
            job = found.ended(job_id)
            assert (job.checkpoint, type(job.error), job.started_at) == ("a:1", CheckpointChanged, None)
            assert job.error.code == "checkpoint_changed"
            assert "a:1" in job.error.message and "b:2" in job.error.message
        after = found.ended(found.add("x"))
        assert (after.status, after.checkpoint) == ("succeeded", "b:2")
        (warning,) = found.supervisor.state.warnings
        assert "a:1" in warning and "b:2" in warning


def test_the_same_weights_after_a_restart_leave_jobs_in_line(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_text("a:1")
    with bench(tmp_path / "data", (file,), factory=FACTORY) as found:
        found.add("die_at=sampling")
        after = found.ended(found.add("x"))
        assert (after.status, after.checkpoint, found.supervisor.state.warnings) == ("succeeded", "a:1", ())


def test_jobs_from_before_the_first_load_take_what_it_brings(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    with bench(tmp_path / "data", (file,), factory=FACTORY) as found:
        early = [found.add(f"until={tmp_path / 'changed'} die_at=video_decode"), found.add("x")]
        assert [found.table.get(job_id).checkpoint for job_id in early] == [None, None]
        (tmp_path / "new").write_text("a:1")
        (tmp_path / "new").rename(file)
        found.status(EngineStatus.READY)
        file.write_text("b:2")
        (tmp_path / "changed").touch()
        assert found.ended(early[0]).error.code == "engine_dead"
        assert found.ended(early[1]).error.code == "checkpoint_changed"


def test_ready_warns_and_the_answer_keeps_what_a_job_was_admitted_under(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_text("a:1")
    with running(tmp_path / "data", recipe=EngineRecipe(FACTORY, (file,))) as server:
        assert server.client.get("/ready").json()["warnings"] == []
        old = server.client.post("/generate", json=SMALL).json()
        assert old["checkpoint"] == "a:1"
        # What is loaded stays loaded until the engine dies.
        file.write_text("b:2")
        server.wait(server.submit(prompt="die_at=mux"))

        def warned() -> dict[str, Any] | None:
            state = server.client.get("/ready").json()
            return state if state["warnings"] and state["status"] == "ready" else None

        state = until(warned)
        assert state["checkpoint"] == "b:2"
        assert "it was a:1, it is b:2" in state["warnings"][0]
        assert server.client.post("/generate", json=SMALL).json()["checkpoint"] == "b:2"
        assert server.job(old["id"])["checkpoint"] == "a:1"

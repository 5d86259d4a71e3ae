"""What goes when its time is over, what is found missing, and what a start throws away."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from h3runtime.core import Progress
from h3runtime.errors import EngineDead, JobNotFound
from h3runtime.jobs.job import Status
from tests.jobs.work import Place, place

PATIENCE = 20.0


def later(found: Place, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the steady clock be so far on."""
    clock = found.queue._clock
    steady = clock.steady
    monkeypatch.setattr(clock, "steady", lambda: steady() + seconds)


def everything_of(found: Place) -> list[str]:
    folders = found.folders
    roots = (folders.outputs, folders.inputs, folders.tails, folders.previews, folders.tmp)
    return sorted(path.name for root in roots for path in root.iterdir())


def test_a_clip_expires_and_its_row_goes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path, retention_seconds=100) as found:
        job = found.done("a", n=2, save_latents=True)
        found.queue._previews.keep("a", b"png")
        found.admit("b")
        found.take()
        found.queue.failed("b", EngineDead("x"))
        assert job.expires_at is not None and job.finished_at is not None
        assert (job.expires_at - job.finished_at).total_seconds() == 100
        found.queue.sweep()
        assert found.table.get("a").status is Status.SUCCEEDED
        later(found, 101, monkeypatch)
        found.queue.sweep()
        assert [found.table.get(job_id).status for job_id in "ab"] == [Status.EXPIRED, Status.FAILED]
        assert everything_of(found) == []
        later(found, 100, monkeypatch)
        found.queue.sweep()
        for job_id in "ab":
            with pytest.raises(JobNotFound):
                found.table.get(job_id)
        assert found.table.page(10, None) == ([], False)


def test_a_retention_of_one_second_is_kept_by_the_keeper(tmp_path: Path) -> None:
    with place(tmp_path, retention_seconds=1) as found:
        found.queue.start()
        began = time.monotonic()
        found.done("a")
        while found.table.get("a").status is not Status.EXPIRED or everything_of(found):
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.02)
        assert time.monotonic() - began > 0.9


def test_a_restart_keeps_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path, retention_seconds=100) as found:
        found.done("a")
    with place(tmp_path, retention_seconds=100) as found:
        later(found, 99, monkeypatch)
        found.queue.sweep()
        assert found.table.get("a").status is Status.SUCCEEDED
        later(found, 2, monkeypatch)
        found.queue.sweep()
        assert found.table.get("a").status is Status.EXPIRED


def test_setting_the_wall_clock_moves_no_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path, retention_seconds=100) as found:
        wall = found.queue._clock.now
        for job_id, years in (("a", -1), ("b", 1)):
            monkeypatch.setattr(found.queue._clock, "now", lambda years=years: wall().replace(year=wall().year + years))
            found.done(job_id)
        found.queue.sweep()
        assert [found.table.get(job_id).status for job_id in "ab"] == [Status.SUCCEEDED] * 2
        later(found, 101, monkeypatch)
        found.queue.sweep()
        assert [found.table.get(job_id).status for job_id in "ab"] == [Status.EXPIRED] * 2


def test_a_clip_that_somebody_removed_is_found(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        job = found.done("a", n=2)
        assert job.clip is not None
        job.clip.variants[0].output.unlink()
        found.queue.sweep()
        assert found.table.get("a").status is Status.EXPIRED
        # What is left of it may be somebody's: it has its time.
        assert everything_of(found) == ["a-0.mp4"]
        found.queue.delete("a")
        assert everything_of(found) == []


def test_a_folder_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.done("a")
        shutil.move(found.folders.outputs, tmp_path / "unmounted")
        found.queue.sweep()
        assert found.table.get("a").status is Status.SUCCEEDED


def test_what_was_overwritten_goes_with_its_new_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path, retention_seconds=100) as found:
        found.done("a", output="x.mp4", save_latents=True)
        later(found, 60, monkeypatch)
        found.done("b", output="x.mp4", overwrite=True)
        later(found, 60, monkeypatch)
        found.queue.sweep()
        assert everything_of(found) == ["b.mkv", "x.mp4"]
        assert found.table.get("b").status is Status.SUCCEEDED


def test_a_start_throws_away_what_belongs_to_no_job(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.done("a")
        found.queue._previews.keep("a", b"png")
        found.admit("b")
        folders = found.folders
        for path in (folders.inputs_of("b"), folders.inputs_of("old"), folders.tmp / "upload-1", folders.tmp / "b"):
            path.mkdir()
            (path / "x").write_bytes(b"x")
        for path in (folders.tail_of("old"), folders.tail_of("b"), folders.preview_of("old"), folders.tmp / "scrap"):
            path.write_bytes(b"x")
    with place(tmp_path) as found:
        assert everything_of(found) == ["a.mkv", "a.mp4", "a.png", "b"]
        assert [path.name for path in found.folders.inputs.iterdir()] == ["b"]


def test_a_preview_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.admit("a")
        found.take()
        shutil.rmtree(found.folders.previews)
        found.queue.progressed("a", Progress("sampling", 1, 4, 0.5, preview=b"x"))
        assert found.table.get("a").progress.step == 1
        assert found.queue.preview_of("a") is None

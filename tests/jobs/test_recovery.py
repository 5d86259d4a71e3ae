"""A process that ends anywhere: no finished job is lost, no half file is seen, and what was computing begins again."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from h3runtime.core import Progress
from h3runtime.errors import JobError
from h3runtime.jobs import publish
from h3runtime.jobs.job import Job, Status
from tests.jobs.work import Place, close_place, open_place, place

CONTENT = {"a": {b"a 0 ", b"a 1 "}, "old": {b"old 0 "}}


@pytest.mark.parametrize("mode", ["new", "overwrite", "linkless"])
def test_a_kill_at_any_point_of_publishing_loses_nothing(quick: Path, mode: str) -> None:
    command = [sys.executable, "-m", "tests.jobs.dying_publisher", str(quick), mode]
    points = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert points > 10
    ends = set()
    for point in range(points + 1):
        seen_whole(quick / str(point) / "outputs")
        found = open_place(quick / str(point))
        try:
            ends.add(check_restart(found, mode))
        finally:
            close_place(found)
    # The first kills come before the result is kept, the last after all is done.
    assert ends == {Status.QUEUED, Status.SUCCEEDED}


def seen_whole(outputs: Path) -> None:
    """Nobody who looks at the folder between the crash and the restart finds a part of a clip."""
    for path in outputs.iterdir():
        # Where there are no hard links, a name may be claimed by an empty file for the moment of a rename.
        assert path.read_bytes() in CONTENT["a"] | CONTENT["old"] | {b""}


def check_restart(found: Place, mode: str) -> Status:
    job = found.table.get("a")
    status = job.status
    outputs = found.folders.outputs
    if status is Status.QUEUED:
        old = {b"old 0 "} if mode == "overwrite" else set()
        assert {path.read_bytes() for path in outputs.iterdir()} == old
        assert job.attempt == 1
        again = found.take()
        found.queue.succeeded("a", found.make(again))
        job = found.table.get("a")
    assert job.status is Status.SUCCEEDED, job.error
    assert job.clip is not None
    clips = (job.clip, *job.clip.variants)
    for clip in clips:
        assert hashlib.sha256(clip.output.read_bytes()).hexdigest() == clip.sha256
    assert {path.name for path in outputs.iterdir()} == {clip.output.name for clip in clips}
    if mode == "overwrite":
        assert found.table.get("old").status is Status.EXPIRED
    assert [*found.folders.tmp.iterdir()] == []
    assert [path.name for path in found.folders.tails.iterdir()] == ["a.mkv"]
    assert found.queue.delete("a").id == "a"
    assert [*outputs.iterdir()] == []
    return status


def crash(found: Place) -> None:
    """End without a word; the lock goes, as the kernel would have it."""
    found.table.store.close()
    found.folders.close()


def test_what_was_computing_begins_once_more_and_then_fails(tmp_path: Path) -> None:
    found = open_place(tmp_path)
    found.admit("a")
    for attempt in (1, 2):
        assert found.take().attempt == attempt
        found.queue.progressed("a", Progress("sampling", 3, 4, 0.5))
        found.queue.tick()
        crash(found)
        found = open_place(tmp_path)
    job = found.table.get("a")
    assert isinstance(job.error, JobError)
    assert (job.status, job.error.code, job.error.stage, job.error.step) == (
        Status.FAILED,
        "interrupted",
        "sampling",
        3,
    )
    # Whoever is to be told of ends is told of this one as well.
    ended: list[Job] = []
    found.queue.on_end = ended.append
    found.queue.start()
    assert [other.id for other in ended] == ["a"]
    close_place(found)


def test_a_result_that_is_gone_is_made_again(tmp_path: Path) -> None:
    found = open_place(tmp_path)
    found.admit("a")
    made = found.make(found.take())
    found.table.change("a", clip=made)
    made.output.unlink()
    crash(found)
    with place(tmp_path) as found:
        job = found.table.get("a")
        assert (job.status, job.attempt, job.clip) == (Status.QUEUED, 1, None)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_while_publishing_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with place(tmp_path) as found:
        found.admit("a", n=2)
        made = found.make(found.take())
        link, calls = os.link, []

        def full(*given: Path) -> None:
            calls.append(given)
            if len(calls) == 2:
                raise OSError(number, "No space left on device")
            link(*given)

        monkeypatch.setattr(publish.os, "link", full)
        found.queue.succeeded("a", made)
        job = found.table.get("a")
        assert (job.status, job.error and job.error.code) == (Status.FAILED, "disk_full")
        roots = (found.folders.outputs, found.folders.tmp, found.folders.tails)
        assert [path for root in roots for path in root.iterdir()] == []


def test_a_name_that_turned_into_a_folder(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.admit("a", output="x.mp4", overwrite=True)
        made = found.make(found.take())
        (found.folders.outputs / "x.mp4").mkdir()
        found.queue.succeeded("a", made)
        job = found.table.get("a")
        assert (job.status, job.error and job.error.code) == (Status.FAILED, "output_exists")


def test_a_link_that_somebody_put_there_is_not_followed(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(b"somebody's")
        for job_id, overwrite in (("a", False), ("b", True)):
            found.admit(job_id, output="x.mp4", overwrite=overwrite)
            made = found.make(found.take())
            (found.folders.outputs / "x.mp4").unlink(missing_ok=True)
            (found.folders.outputs / "x.mp4").symlink_to(elsewhere)
            found.queue.succeeded(job_id, made)
        assert [found.table.get(job_id).status for job_id in "ab"] == [Status.FAILED, Status.SUCCEEDED]
        assert elsewhere.read_bytes() == b"somebody's"
        assert not (found.folders.outputs / "x.mp4").is_symlink()

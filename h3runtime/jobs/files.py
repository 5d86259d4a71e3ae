"""Where a server keeps its files, and who may use the folder.

    <data>/lock            held while a server runs (`lock`)
    <data>/jobs.sqlite3    the record of jobs (`store`)
    <data>/inputs/ID/      what a job was given; gone when it ends
    <data>/tails/          the end of each clip without loss, for one that continues it; the oldest go
    <data>/previews/       the newest look at each clip
    <data>/quality/        evidence of quality levels, which `calibrate` writes and `quality.shelf` reads
    <data>/tmp/            uploads on their way in, and each job's scratch folder; emptied at start
    <outputs>/             finished clips, under the names that requests chose

A clip is published by renaming it out of its scratch folder, which therefore must be on the file system of the outputs:
where that isn't the data folder's, scratch lies in a dotted folder beside the clips (no request may name such a one).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from h3runtime.jobs.lock import DataLock, unusable
from h3runtime.jobs.outputs import STAGE
from h3runtime.jobs.store import NAME
from h3runtime.settings import Settings

FAR_SCRATCH = ".h3runtime-tmp"
OUTPUTS = "H3_OUTPUT_ROOT"
TAIL_SUFFIX = ".mkv"
PREVIEW_SUFFIX = ".png"
TAIL_BYTES = 8 * 2**30
"""What all tails may take; 56 frames of 1344x768 are about 100 MB."""


class Folders:
    """The folders of one running server. Opening them takes the lock, closing gives it back.

    store: the file of the jobs' record. retention_seconds: how long a finished clip is kept in `outputs`.
    """

    def __init__(self, settings: Settings) -> None:
        self.outputs = settings.output_root
        self.inputs = settings.data_dir / "inputs"
        self.tmp = settings.data_dir / "tmp"
        self.tails = settings.data_dir / "tails"
        self.previews = settings.data_dir / "previews"
        self.store = settings.data_dir / NAME
        self.retention_seconds = settings.retention_seconds
        self._lock = DataLock(_make(settings.data_dir))
        try:
            self._scratch = self._open()
        except BaseException:
            self._lock.close()
            raise

    def scratch_of(self, job_id: str) -> Path:
        return self._scratch / job_id

    def inputs_of(self, job_id: str) -> Path:
        return self.inputs / job_id

    def tail_of(self, job_id: str) -> Path:
        return self.tails / f"{job_id}{TAIL_SUFFIX}"

    def preview_of(self, job_id: str) -> Path:
        return self.previews / f"{job_id}{PREVIEW_SUFFIX}"

    def drop_preview(self, job_id: str) -> None:
        """Never fails."""
        with suppress(OSError):
            self.preview_of(job_id).unlink(missing_ok=True)

    def drop_tail(self, job_id: str) -> None:
        """Of a job that made no clip, or whose clip is gone. Never fails."""
        with suppress(OSError):
            self.tail_of(job_id).unlink(missing_ok=True)

    def trim_tails(self, kept_bytes: int = TAIL_BYTES) -> None:
        """Remove the oldest beyond `kept_bytes`; the newest stays in any case. Never fails."""
        with suppress(OSError):
            # Ids of jobs begin with their time, so names are in the order of arrival.
            tails = sorted(self.tails.glob(f"*{TAIL_SUFFIX}"), reverse=True)
            for index, total in enumerate(accumulate(tail.stat().st_size for tail in tails)):
                if index and total > kept_bytes:
                    tails[index].unlink(missing_ok=True)

    def forget(self, job_id: str) -> None:
        """Remove what a job was given and its scraps. Never fails: the job's end matters more."""
        shutil.rmtree(self.inputs_of(job_id), ignore_errors=True)
        shutil.rmtree(self.scratch_of(job_id), ignore_errors=True)

    def clear_scratch(self, job_id: str) -> None:
        """An empty scratch folder for a job that begins, with a place for what it makes. OSError."""
        scratch = self.scratch_of(job_id)
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / STAGE).mkdir(parents=True, exist_ok=True)

    def drop_scraps(self, job_id: str) -> None:
        """Remove what a job has made so far, but not what it was given. Never fails."""
        shutil.rmtree(self.scratch_of(job_id), ignore_errors=True)
        self.drop_tail(job_id)

    def remove_orphans(self, live: Iterable[str], with_tails: Iterable[str], known: Iterable[str]) -> None:
        """Remove scratch and uploads, inputs of jobs that aren't live, and other tails and previews than these jobs'.
        Never fails."""
        for folder, ids, suffix in (
            (self.tmp, (), ""),
            (self._scratch, (), ""),
            (self.inputs, live, ""),
            (self.tails, with_tails, TAIL_SUFFIX),
            (self.previews, known, PREVIEW_SUFFIX),
        ):
            kept = {f"{job_id}{suffix}" for job_id in ids}
            for path in _entries(folder):
                if path.name not in kept:
                    _remove(path)

    def restore(self) -> None:
        """Make again what somebody's cleaning took away since the start."""
        for folder in (self.inputs, self.tails, self.previews, self.tmp, self.outputs, self._scratch):
            folder.mkdir(parents=True, exist_ok=True)

    def free_bytes(self) -> int:
        """The smaller of what is free for data and for outputs."""
        return min(shutil.disk_usage(_existing(folder)).free for folder in (self.tmp, self.outputs))

    def close(self) -> None:
        self._lock.close()

    def _open(self) -> Path:
        """Make the folders, and settle where scratch lies."""
        for folder in (self.inputs, self.tails, self.previews, self.tmp):
            _make(folder)
        _make(self.outputs, OUTPUTS)
        far = self.outputs / FAR_SCRATCH
        if self.outputs.stat().st_dev != self.tmp.stat().st_dev:
            return _make(far, OUTPUTS)
        # Of a time when it was on another file system.
        shutil.rmtree(far, ignore_errors=True)
        return self.tmp


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _make(folder: Path, setting: str = "H3_DATA_DIR") -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(folder, error.strerror or str(error), setting) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise unusable(folder, "it can't be written to", setting)
    return folder

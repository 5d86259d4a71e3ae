"""Where a server keeps its files, and who may use the folder.

    <data>/lock        held while a server runs (`lock`)
    <data>/inputs/ID/  what a job was given; gone when it ends
    <data>/tmp/        uploads on their way in, and each job's scratch folder; emptied at start
    <outputs>/         finished clips, under the names that requests chose

A clip is published by renaming it out of its scratch folder, which therefore must be on the file system of the outputs:
where that isn't the data folder's, scratch lies in a dotted folder beside the clips (no request may name such a one).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from h3runtime.jobs.lock import DataLock, unusable
from h3runtime.settings import Settings

FAR_SCRATCH = ".h3runtime-tmp"


class Folders:
    """The folders of one running server. Opening them takes the lock, closing gives it back."""

    def __init__(self, settings: Settings) -> None:
        self.outputs = settings.output_root
        self.inputs = settings.data_dir / "inputs"
        self.tmp = settings.data_dir / "tmp"
        self._floor = settings.disk_floor_bytes
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

    def forget(self, job_id: str) -> None:
        """Remove what a job was given and its scraps. Never fails: the job's end matters more."""
        shutil.rmtree(self.inputs_of(job_id), ignore_errors=True)
        shutil.rmtree(self.scratch_of(job_id), ignore_errors=True)

    def restore(self) -> None:
        """Make again what somebody's cleaning took away since the start."""
        for folder in (self.inputs, self.tmp, self.outputs, self._scratch):
            folder.mkdir(parents=True, exist_ok=True)

    def free_bytes(self) -> int:
        """The smaller of what is free for data and for outputs."""
        return min(shutil.disk_usage(_existing(folder)).free for folder in (self.tmp, self.outputs))

    def is_full(self) -> bool:
        return self.free_bytes() < self._floor

    def close(self) -> None:
        self._lock.close()

    def _open(self) -> Path:
        """Make the folders, throw away what an earlier server left, and settle where scratch lies."""
        # Jobs live in memory, so whatever an earlier process kept for its own has no owner any more.
        for folder in (self.inputs, self.tmp, self.outputs / FAR_SCRATCH):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.inputs, self.tmp, self.outputs):
            _make(folder)
        if self.outputs.stat().st_dev == self.tmp.stat().st_dev:
            return self.tmp
        return _make(self.outputs / FAR_SCRATCH)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(folder, error.strerror or str(error)) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise unusable(folder, "it can't be written to")
    return folder

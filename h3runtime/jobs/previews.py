"""The newest look at each clip that is being made: one small PNG a job, replaced at every step.

    <data>/previews/<id>.png

Written by `queue` as the engine tells them, read by `api`, removed by `retention`. A preview that can't be written is
none: nothing depends on it, and it is not synced to disk.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from h3runtime.jobs.files import Folders


class Previews:
    """Of one server."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def keep(self, job_id: str, png: bytes) -> None:
        """Whole or not at all. Never fails."""
        path = self._folders.preview_of(job_id)
        part = path.with_suffix(".part")
        try:
            part.write_bytes(png)
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def path_of(self, job_id: str) -> Path | None:
        path = self._folders.preview_of(job_id)
        return path if path.is_file() else None

"""What of a changed job the store doesn't hold yet, and how it is written once that can be.

`table` keeps one for each job that the store could not take, and makes one for each change that it tries to write. The
job itself isn't in it: what is written is always the newest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from h3runtime.jobs import job_rows
from h3runtime.jobs.job import Job

Also = Callable[[sqlite3.Connection], None]
"""What else is written in the transaction of a change; doing it twice does no harm."""


@dataclass(frozen=True, slots=True)
class Unsaved:
    """Beside its state. durable: whether it may not be lost when the power fails."""

    with_spec: bool = False
    also: tuple[Also, ...] = ()
    durable: bool = True

    def and_then(self, later: Unsaved) -> Unsaved:
        """Both, the later one last."""
        return Unsaved(self.with_spec or later.with_spec, self.also + later.also)

    def write(self, connection: sqlite3.Connection, job: Job, event: int) -> None:
        """event: id of the job's last event."""
        expires = job.expires_at.timestamp() if job.expires_at else None
        job_rows.save(connection, job, event, expires, self.with_spec)
        for also in self.also:
            also(connection)

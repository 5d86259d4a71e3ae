"""How long things are kept, and what is removed when: clips, rows, tails, previews, and what nobody owns.

    end of a job + retention                        its clip goes, the job is `expired`
    end of a job + retention + max(retention, 60 s) its row goes
    a clip that is not where it was put             the job is `expired` at once; its other files stay for their time
    start                                           what belongs to no job goes

Files of outputs are removed by ownership (`output_rows`), never by name alone. `files` is held by whoever places or
removes one, so that none is removed which another job has just put there. Called by `queue` and its keeper.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from h3runtime.errors import JobNotFound, NotReady
from h3runtime.jobs import job_rows, output_rows
from h3runtime.jobs.clock import Clock
from h3runtime.jobs.files import Folders
from h3runtime.jobs.outputs import Placement, placements
from h3runtime.jobs.publish import withdraw
from h3runtime.jobs.table import JobTable, Status

SHORTEST_SWEEP, LONGEST_SWEEP = 0.5, 30.0
"""Seconds between sweeps; the longest is service-contract's."""
SHORTEST_MEMORY = 60.0
"""Seconds that the row of an expired job is still there at least."""
ENDED = tuple(status.value for status in Status if status.ended)

log = structlog.get_logger("h3runtime.jobs")


class Retention:
    """Of one server. Safe to use from any thread."""

    def __init__(self, table: JobTable, folders: Folders, clock: Clock) -> None:
        self.files = threading.RLock()
        self._table, self._folders, self._clock = table, folders, clock

    @property
    def pause(self) -> float:
        """Seconds between sweeps."""
        return min(LONGEST_SWEEP, max(SHORTEST_SWEEP, self._folders.retention_seconds / 2))

    def sweep(self) -> None:
        """Everything whose time is over by now."""
        now = self._clock.steady()
        with self._table.store.reading() as connection:
            over = job_rows.expired(connection, [Status.SUCCEEDED.value], now)
            over += output_rows.leftovers(connection, now)
        for job_id in over:
            self.expire(job_id)
        self._find_missing()
        forgotten = now - max(self._folders.retention_seconds, SHORTEST_MEMORY)
        with self._table.store.reading() as connection:
            rows = job_rows.expired(connection, ENDED, forgotten)
        for job_id in rows:
            self.remove(job_id)
        self._folders.trim_tails()

    def expire(self, job_id: str) -> None:
        """The job's files go. Its state first: whoever asks meanwhile is told so."""
        with self.files, suppress(JobNotFound):
            self._table.change(job_id, status=Status.EXPIRED)
            self._remove_outputs(job_id)
            with self._table.store.writing() as connection:
                output_rows.disown(connection, job_id)
            self._folders.drop_tail(job_id)
            self._folders.drop_preview(job_id)

    def remove(self, job_id: str) -> None:
        """The job and all that is its own. Of no effect if it isn't there."""
        with self.files:
            if not self._table.flush():
                self._remove_unsaved(job_id)
            self._remove_outputs(job_id)
            self._folders.forget(job_id)
            self._folders.drop_tail(job_id)
            self._folders.drop_preview(job_id)
            self._table.remove(job_id)

    def expire_owners(self, placed: Iterable[Placement], new_owner: str) -> None:
        """Jobs whose clips were written over are `expired`. Never fails: the new clip is there already."""
        owners: set[str | None] = set()
        with suppress(NotReady), self._table.store.reading() as connection:
            owners = {output_rows.owner_of_clip(connection, file.final) for file in placed}
        for job_id in owners - {None, new_owner}:
            with suppress(JobNotFound):
                self._table.change(str(job_id), status=Status.EXPIRED)
            self._folders.drop_tail(str(job_id))

    def remove_orphans(self) -> None:
        """What an earlier process left and no job needs: scratch, uploads, inputs, tails and previews."""
        with self._table.store.reading() as connection:
            succeeded = job_rows.ids(connection, Status.SUCCEEDED.value)
            known = {job_id for status in Status for job_id in job_rows.ids(connection, status.value)}
        live = {job.id for job in self._table.live()}
        self._folders.remove_orphans(live, succeeded, known)

    def _find_missing(self) -> None:
        with self._table.store.reading() as connection:
            clips = output_rows.clips_of_successes(connection)
        # Of a folder that isn't there, a disk that isn't mounted, nothing is known.
        there = {folder: folder.is_dir() for folder in {path.parent for path, _ in clips}}
        for path, job_id in clips:
            if there[path.parent] and not path.is_file():
                log.info("output_missing", job_id=job_id, output=path.name)
                with suppress(JobNotFound):
                    self._table.change(job_id, status=Status.EXPIRED)
                self._folders.drop_tail(job_id)

    def _remove_unsaved(self, job_id: str) -> None:
        """The files of a success that the store can't be told of just now, and so has no owner for."""
        with suppress(JobNotFound):
            job = self._table.get(job_id)
            if job.status is Status.SUCCEEDED and job.clip is not None:
                withdraw(placements(job.spec, job.clip))

    def _remove_outputs(self, job_id: str) -> None:
        with self._table.store.reading() as connection:
            paths: list[Path] = output_rows.owned(connection, job_id)
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)

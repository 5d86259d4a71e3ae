"""The table of jobs: the live ones and the newest that ended in memory, all of them in the store.

    change --> store, then memory --> watchers (at the end) and followers (at every event)

Written by `queue`, read by `api`; safe to use from any thread. Reading takes no lock that anybody holds while he writes
to disk, so an event loop may read. What the store refuses for the moment, a full disk or a file that another process
holds, changes in memory all the same and is written by `flush` as soon as it can be; a new job is refused instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import structlog

from h3runtime.errors import JobNotFound, NotReady
from h3runtime.jobs import job_rows
from h3runtime.jobs.bells import Bells
from h3runtime.jobs.events import AFTER_RESTART, Event, EventLog
from h3runtime.jobs.job import Job, Order, Status
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.unsaved import Also, Unsaved

__all__ = ["KEPT", "Event", "Job", "JobTable", "Order", "Status"]

KEPT = 1000
"""Ended jobs that are remembered beside the store. A job is a few kilobytes."""

STREAMED = 32
"""Of how many ended jobs all events are remembered, for whoever follows them more slowly than they come."""

log = structlog.get_logger("h3runtime.jobs")


@dataclass(slots=True)
class _Entry:
    job: Job
    log: EventLog


class JobTable:
    """Jobs in order of arrival. store: None keeps everything in memory."""

    def __init__(self, store: JobStore | None = None, kept: int = KEPT) -> None:
        self.store = store or JobStore()
        self._kept = kept
        self._writing = threading.RLock()
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._ended: dict[str, None] = {}
        self._unsaved: dict[str, Unsaved] = {}
        self._stale: set[str] = set()
        self._gone: set[str] = set()
        self._ends, self._events = Bells(), Bells()
        self._load()

    def add(self, job: Job) -> None:
        """`DiskFull`, `NotReady`: it was not kept, and is not there."""
        events = EventLog()
        news = events.news(job, None)
        with self.store.writing() as connection:
            job_rows.remove(connection, [*self._gone])
            job_rows.insert(connection, job, news[-1].id)
        events.add(news)
        with self._lock:
            self._entries[job.id] = _Entry(job, events)

    def get(self, job_id: str) -> Job:
        """The job as it is now. `JobNotFound` for an id that was never given or is forgotten."""
        return self._entry(job_id).job

    def find(self, job_id: str, owner: str) -> Job:
        """`JobNotFound` for the job of another owner too."""
        job = self.get(job_id)
        if job.owner != owner:
            raise _not_found(job_id)
        return job

    def by_key(self, owner: str, key: str) -> Job | None:
        """The job that this owner sent with this `Idempotency-Key`."""
        with self.store.reading() as connection:
            job_id = job_rows.by_key(connection, owner, key)
        # It may have been deleted since.
        with suppress(JobNotFound):
            return None if job_id is None else self.get(job_id)
        return None

    def live(self) -> list[Job]:
        """Those that haven't ended, oldest first."""
        with self._lock:
            return [entry.job for entry in self._entries.values() if not entry.job.status.ended]

    def page(
        self, limit: int, after: str | None, owner: str | None = None, *, oldest_first: bool = False
    ) -> tuple[list[Job], bool]:
        """Up to `limit` jobs, newest first, older than the job `after`, or the other way round; and whether there are
        more. owner: whose, None for everybody's. `JobNotFound` for `after`."""
        with self._lock:
            gone = self._gone.copy()
        if after is not None and owner is not None:
            self.find(after, owner)
        with self.store.reading() as connection:
            past = None if after is None else job_rows.place_of(connection, after)
            if after is not None and (past is None or after in gone):
                raise _not_found(after)
            found = job_rows.page(connection, limit + 1 + len(gone), past, owner, oldest_first)
        ids = [job_id for job_id in found if job_id not in gone]
        jobs = self._read(ids[:limit])
        return [jobs[job_id] for job_id in ids[:limit] if job_id in jobs], len(ids) > limit

    def change(self, job_id: str, *, also: Also | None = None, **changes: Any) -> Job:
        """Replace a job's fields. The first end stands: after it, a success may still expire and nothing else."""
        with self._writing:
            entry = self._entry(job_id)
            before, after = entry.job, replace(entry.job, **changes)
            if before.status.ended and (before.status, after.status) != (Status.SUCCEEDED, Status.EXPIRED):
                return before
            news = entry.log.news(after, before)
            if changes.keys() <= {"progress"}:
                self._stale.add(job_id)
            else:
                # Without the mark that a job computes, a new process computes it all the same.
                durable = after.status is not Status.RUNNING or "clip" in changes
                what = Unsaved("spec" in changes, (also,) if also else (), durable)
                self._save(after, entry.log.last + len(news), what)
            self._replace(entry, after, news)
        if after.status.ended:
            self._ends.ring(job_id, once=True)
        if news:
            self._events.ring(job_id)
        return after

    def remove(self, job_id: str) -> None:
        """Forget a job; whoever watches or follows it is rung. Of no effect if it isn't there."""
        with self._writing:
            with self._lock:
                self._entries.pop(job_id, None)
                self._ended.pop(job_id, None)
                self._gone.add(job_id)
            self._unsaved.pop(job_id, None)
            self._stale.discard(job_id)
            if not self._unsaved:
                self._remove_gone()
        self._ends.ring(job_id, once=True)
        self._events.ring(job_id)

    def watch(self, job_id: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` when the job ends or is removed (now, if it has ended), from whichever thread does it, and at
        `wake`. Returns an undo."""
        with self._lock:
            # An end is told after this lock is left, so one that comes now rings.
            if not self.get(job_id).status.ended:
                return self._ends.add(job_id, ring)
        ring()
        return lambda: None

    def follow(self, job_id: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` at every new event of the job, at its removal and at `wake`. Returns an undo."""
        with self._lock:
            self.get(job_id)
            return self._events.add(job_id, ring)

    def events(self, job_id: str, after: int | None) -> tuple[Event, ...]:
        """What was told of the job since the event `after`; where that can't be known, and for None, how it is now."""
        with self._lock:
            entry = self._entry(job_id)
            return entry.log.after(after, entry.job)

    def wake(self) -> None:
        """Ring everybody who waits for a job that isn't computing, and all that follow one: the server drains."""
        with self._lock:
            waiting = [entry.job.id for entry in self._entries.values() if entry.job.status is Status.QUEUED]
        for job_id in waiting:
            self._ends.ring(job_id)
        self._events.ring_all()

    def wake_watchers(self, job_id: str) -> None:
        """Ring those who wait for this job, though it hasn't ended."""
        self._ends.ring(job_id)

    def flush(self) -> bool:
        """Write what the store lacks; True if it lacks nothing now. To be called about once a second."""
        if not self._unsaved and not self._gone:
            return self._flush_progress()
        with self._writing:
            unsaved, gone = self._unsaved.copy(), self._gone.copy()
            kept = {job_id: (self._entries[job_id].job, self._entries[job_id].log.last) for job_id in unsaved}
        # Not under the lock: what changes meanwhile is in `_unsaved` too, and waits for the next time.
        try:
            with self.store.writing() as connection:
                job_rows.remove(connection, gone)
                for job_id, (job, event) in kept.items():
                    unsaved[job_id].write(connection, job, event)
        except NotReady as error:
            log.warning("store_not_written", jobs=len(kept), removed=len(gone), why=error.message)
            return False
        with self._writing, self._lock:
            self._gone -= gone
            for job_id, (job, _) in kept.items():
                if job_id in self._unsaved and self._entries[job_id].job is job:
                    del self._unsaved[job_id]
            self._trim()
            return not self._unsaved

    def close(self) -> None:
        """Write what is left and close the store."""
        self.flush()
        self.store.close()

    def _load(self) -> None:
        """The live jobs of an earlier process. Their events go on where nobody has been."""
        with self.store.reading() as connection:
            kept = job_rows.live(connection)
        for row in kept:
            events = EventLog(row.event + AFTER_RESTART)
            events.add(events.news(row.job, None))
            self._entries[row.job.id] = _Entry(row.job, events)
        # At once: the next process must begin above what this one tells.
        with self._writing:
            for entry in self._entries.values():
                self._save(entry.job, entry.log.last, Unsaved())

    def _entry(self, job_id: str) -> _Entry:
        with self._lock:
            if job_id in self._gone:
                raise _not_found(job_id)
            if (entry := self._entries.get(job_id)) is not None:
                return entry
        with self.store.reading() as connection:
            kept = job_rows.read(connection, job_id)
        if kept is None:
            raise _not_found(job_id)
        return _Entry(kept.job, EventLog(kept.event))

    def _read(self, ids: list[str]) -> dict[str, Job]:
        with self._lock:
            jobs = {job_id: self._entries[job_id].job for job_id in ids if job_id in self._entries}
        # Not one within the other: who holds `_lock` may wait for the reader.
        with self.store.reading() as connection:
            kept = job_rows.read_all(connection, [job_id for job_id in ids if job_id not in jobs])
        return jobs | {job_id: row.job for job_id, row in kept.items()}

    def _save(self, job: Job, event: int, what: Unsaved) -> None:
        """To the store, or to what it lacks. With something lacking already nothing is tried: who holds the file up
        holds up the engine's supervisor, which must hear its engine."""
        if not self._unsaved:
            try:
                with self.store.writing(durable=what.durable) as connection:
                    what.write(connection, job, event)
                self._stale.discard(job.id)
                return
            except NotReady as error:
                log.warning("store_not_written", job_id=job.id, why=error.message)
        self._unsaved[job.id] = self._unsaved.get(job.id, Unsaved()).and_then(what)

    def _replace(self, entry: _Entry, job: Job, news: tuple[Event, ...]) -> None:
        with self._lock:
            entry.job = job
            entry.log.add(news)
            # One that only the store had comes back while the store can't take it.
            if job.id not in self._entries and job.id in self._unsaved:
                self._entries[job.id] = entry
            if job.status.ended and job.id in self._entries:
                self._ended.setdefault(job.id)
            self._trim()

    def _trim(self) -> None:
        for job_id in islice(reversed(self._ended), STREAMED, STREAMED + 1):
            self._entries[job_id].log.shorten()
        surplus = len(self._ended) - self._kept
        for job_id in [job_id for job_id in self._ended if job_id not in self._unsaved][: max(0, surplus)]:
            del self._ended[job_id], self._entries[job_id]

    def _remove_gone(self) -> None:
        try:
            with self.store.writing() as connection:
                job_rows.remove(connection, self._gone)
        except NotReady as error:
            log.warning("store_not_written", removed=len(self._gone), why=error.message)
        else:
            with self._lock:
                self._gone.clear()

    def _flush_progress(self) -> bool:
        with self._writing:
            stale, self._stale = self._stale, set()
            for job_id in stale & self._entries.keys():
                entry = self._entries[job_id]
                self._save(entry.job, entry.log.last, Unsaved(durable=False))
            return not self._unsaved


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id!r:.60}")

"""The rows of jobs: written and read by `table`, on the connections of `store`.

insert   a new job, together with the removal of jobs that are gone
save     what has changed of some: their states, and their specifications where those changed
page     ids, newest first
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from h3runtime.jobs.job import Job
from h3runtime.jobs.rows import job_of, spec_text, state_text

log = structlog.get_logger("h3runtime.jobs")

LIVE = "status IN ('queued', 'running')"


@dataclass(frozen=True, slots=True)
class Kept:
    """A job as it was kept. event: id of its last event."""

    job: Job
    event: int


def insert(connection: sqlite3.Connection, job: Job, event: int) -> None:
    """IntegrityError for an id, or an owner's key, that is there."""
    connection.execute(
        "INSERT INTO jobs (id, owner, key, status, event, expires, spec, state) VALUES (?, ?, ?, ?, ?, NULL, ?, ?)",
        (job.id, job.owner, job.order.key, job.status.value, event, spec_text(job.spec), state_text(job)),
    )


def save(connection: sqlite3.Connection, job: Job, event: int, expires: float | None, with_spec: bool) -> None:
    """expires: seconds since 1970, None to leave it as it is."""
    connection.execute(
        "UPDATE jobs SET status = ?, event = ?, state = ?, expires = coalesce(?, expires) WHERE id = ?",
        (job.status.value, event, state_text(job), expires, job.id),
    )
    if with_spec:
        connection.execute("UPDATE jobs SET spec = ? WHERE id = ?", (spec_text(job.spec), job.id))


def remove(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    """With all rows that are theirs; a callback's holds the job's own words."""
    for job_id in ids:
        connection.execute("DELETE FROM callbacks WHERE job = ?", (job_id,))
        connection.execute("DELETE FROM outputs WHERE job = ?", (job_id,))
        connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))


def read(connection: sqlite3.Connection, job_id: str) -> Kept | None:
    """None if it isn't there."""
    found = connection.execute("SELECT id, spec, state, event FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return None if found is None else _kept(*found)


def read_all(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Kept]:
    """Those that are there, by id."""
    marks = ",".join("?" * len(ids))
    rows = connection.execute(f"SELECT id, spec, state, event FROM jobs WHERE id IN ({marks})", ids).fetchall()
    return {row[0]: kept for row in rows if (kept := _kept(*row)) is not None}


def live(connection: sqlite3.Connection) -> list[Kept]:
    """Jobs that haven't ended, in order of arrival."""
    rows = connection.execute(f"SELECT id, spec, state, event FROM jobs WHERE {LIVE} ORDER BY seq").fetchall()
    return [kept for kept in (_kept(*row) for row in rows) if kept is not None]


def _kept(job_id: str, spec: str, state: str, event: int) -> Kept | None:
    """None, and a line in the log, for what can't be read: one such row must not take all others with it."""
    try:
        return Kept(job_of(spec, state), event)
    except ValueError as error:
        log.error("job_unreadable", job_id=job_id, exc_info=error)
        return None


def place_of(connection: sqlite3.Connection, job_id: str) -> int | None:
    """Its number in the order of arrival."""
    found = connection.execute("SELECT seq FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return None if found is None else int(found[0])


def page(connection: sqlite3.Connection, limit: int, past: int | None, owner: str | None, rising: bool) -> list[str]:
    """Up to `limit` ids from the place `past` on: newest first, or in order of arrival."""
    conditions, values = ["1"], list[object]()
    if owner is not None:
        conditions, values = ["owner = ?"], [owner]
    if past is not None:
        conditions, values = [*conditions, f"seq {'>' if rising else '<'} ?"], [*values, past]
    query = f"SELECT id FROM jobs WHERE {' AND '.join(conditions)} ORDER BY seq {'ASC' if rising else 'DESC'} LIMIT ?"
    return [row[0] for row in connection.execute(query, (*values, limit)).fetchall()]


def by_key(connection: sqlite3.Connection, owner: str, key: str) -> str | None:
    # The condition on an empty key is what lets SQLite use the partial index.
    found = connection.execute("SELECT id FROM jobs WHERE owner = ? AND key = ? AND key <> ''", (owner, key)).fetchone()
    return None if found is None else str(found[0])


def expired(connection: sqlite3.Connection, statuses: Sequence[str], until: float) -> list[str]:
    """Ids of jobs with one of `statuses` whose time ended at `until` or before."""
    marks = ",".join("?" * len(statuses))
    query = f"SELECT id FROM jobs WHERE status IN ({marks}) AND expires <= ? ORDER BY expires LIMIT 1000"
    return [row[0] for row in connection.execute(query, (*statuses, until)).fetchall()]


def ids(connection: sqlite3.Connection, status: str) -> set[str]:
    return {row[0] for row in connection.execute("SELECT id FROM jobs WHERE status = ?", (status,))}

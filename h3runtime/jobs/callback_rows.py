"""The rows of callbacks: who is to be told of which job's end, how often that was tried, and when it is next.

    add      the job has ended; what is told stays the same for every attempt
    claim    counts an attempt before it is made, so that one which takes the process down can't be repeated for ever
    put_off  says when the next one is
    settle   told, or given up; the row stays, to show that nothing is owed, until the job's own is gone (`job_rows`)

Written and read by `api.callbacks`, on the connections of `store`. Times are seconds since 1970.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

WAITING, SETTLED = "waiting", "settled"


@dataclass(frozen=True, slots=True)
class Callback:
    """One job's. attempts: made so far. due: when the next one is. url and body are for no log."""

    job: str
    url: str
    body: bytes
    ended: float
    due: float
    attempts: int = 0


def add(connection: sqlite3.Connection, callback: Callback) -> bool:
    """False if the job has one, or is gone."""
    values = (callback.job, callback.url, callback.body, callback.ended, callback.due, callback.attempts, WAITING)
    query = (
        "INSERT OR IGNORE INTO callbacks (job, url, body, ended, due, attempts, state)"
        " SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM jobs WHERE id = ?1)"
    )
    return bool(connection.execute(query, values).rowcount)


def waiting(connection: sqlite3.Connection) -> list[Callback]:
    """All that are still to be told, the earliest first."""
    told = "SELECT job, url, body, ended, due, attempts FROM callbacks WHERE state = ? ORDER BY due"
    return [Callback(*row) for row in connection.execute(told, (WAITING,)).fetchall()]


def claim(connection: sqlite3.Connection, job: str) -> Callback | None:
    """The callback with one attempt more; None if it or its job is gone."""
    found = connection.execute(
        "UPDATE callbacks SET attempts = attempts + 1 WHERE job = ? AND state = ?"
        " AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = callbacks.job)"
        " RETURNING job, url, body, ended, due, attempts",
        (job, WAITING),
    ).fetchone()
    return None if found is None else Callback(*found)


def put_off(connection: sqlite3.Connection, job: str, due: float) -> None:
    """The next attempt is at `due`."""
    connection.execute("UPDATE callbacks SET due = ? WHERE job = ?", (due, job))


def settle(connection: sqlite3.Connection, job: str) -> None:
    """Nothing more is owed. Address and body go."""
    connection.execute("UPDATE callbacks SET state = ?, url = '', body = x'' WHERE job = ?", (SETTLED, job))

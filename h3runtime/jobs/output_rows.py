"""Which ended job owns which finished file: rows that `publish` and `retention` write and read.

A file that another job has written over is the other's, so that nobody removes what isn't his.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from h3runtime.jobs.outputs import Placement


def own(connection: sqlite3.Connection, job_id: str, files: Iterable[Placement]) -> None:
    """From now on they are this job's, whoever had them."""
    rows = [(str(file.final), job_id, file.is_clip) for file in files]
    connection.executemany("INSERT OR REPLACE INTO outputs (path, job, clip) VALUES (?, ?, ?)", rows)


def disown(connection: sqlite3.Connection, job_id: str) -> None:
    connection.execute("DELETE FROM outputs WHERE job = ?", (job_id,))


def owner_of_clip(connection: sqlite3.Connection, path: Path) -> str | None:
    found = connection.execute("SELECT job FROM outputs WHERE path = ? AND clip", (str(path),)).fetchone()
    return None if found is None else str(found[0])


def owned(connection: sqlite3.Connection, job_id: str) -> list[Path]:
    return [Path(row[0]) for row in connection.execute("SELECT path FROM outputs WHERE job = ?", (job_id,)).fetchall()]


def clips_of_successes(connection: sqlite3.Connection) -> list[tuple[Path, str]]:
    """Where each clip is that can be asked for, and whose it is."""
    query = "SELECT path, job FROM outputs JOIN jobs ON id = job WHERE clip AND status = 'succeeded'"
    return [(Path(path), job) for path, job in connection.execute(query).fetchall()]


def leftovers(connection: sqlite3.Connection, until: float) -> list[str]:
    """Jobs that expired before their time, by another's hand, and still own files at its end."""
    query = "SELECT DISTINCT job FROM outputs JOIN jobs ON id = job WHERE status = 'expired' AND expires <= ?"
    return [row[0] for row in connection.execute(query, (until,)).fetchall()]

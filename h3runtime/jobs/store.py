"""One SQLite file that holds the jobs, and how it may be used: opened, judged, migrated, read and written.

    <data>/jobs.sqlite3    in WAL mode, so that reading never waits for whoever writes; commits that matter are synced

It knows no SQL of jobs: `job_rows`, `output_rows` and others write theirs within `writing` and `reading`. A file that
is broken, foreign or of a newer version is refused and left alone. Without a path all is kept in memory.

What goes wrong later is one of two errors: `DiskFull`, or `NotReady` for a file that another process holds or that
can't be written. Nothing has been written then, and trying again is all that is needed.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from h3runtime.errors import DiskFull, NotReady, Offence, SettingsError
from h3runtime.jobs.migrations import MIGRATIONS

NAME = "jobs.sqlite3"
APPLICATION = 0x48334A42
"""SQLite's `application_id` of our file, "H3JB"."""
BUSY_SECONDS = 5.0
"""How long a write waits for another process that holds the file."""
SPARE_BYTES = 4 * 2**20
"""With less than this free, an error in writing is the full disk's: SQLite tells some of them as I/O errors."""
WHOLE = "a folder whose jobs.sqlite3 is whole; move the file away to begin without its jobs"


class JobStore:
    """Safe to use from any thread: one writes at a time, and one reads at a time beside it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._writing = threading.RLock()
        self._writer = _open(path) if path else _connect(":memory:")
        self._identity = _identity(path)
        if path is None:
            _migrate(self._writer)
        # What is in memory has one connection, and so one lock.
        self._reader = _connect_to_read(path) if path else self._writer
        self._reading = threading.RLock() if path else self._writing
        # Whoever forgets a store closes it.
        weakref.finalize(self, _close, self._reader, self._writer)

    def require_in_place(self) -> None:
        """`NotReady` if the file is no longer the one that was opened: what is written would go with the process."""
        if _identity(self.path) != self._identity:
            raise NotReady("the record of jobs was removed or replaced while the server ran; it must be started again")

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk when the block is left. `DiskFull`, `NotReady`: nothing of it is.

        durable: False for what may be lost when the power fails; the end of a process loses nothing in either case.
        """
        if not self._writing.acquire(timeout=BUSY_SECONDS):
            raise NotReady("the record of jobs is being written; try again in a moment")
        try:
            with self._typed(), self._transaction(durable) as connection:
                yield connection
        finally:
            self._writing.release()

    @contextmanager
    def _transaction(self, durable: bool) -> Iterator[sqlite3.Connection]:
        if self._writer.in_transaction:
            yield self._writer
            return
        # FULL syncs the log at each commit, NORMAL only when it is folded into the file (sqlite.org/pragma.html).
        self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield self._writer
            self._writer.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """What has been written so far; never waits for a writer."""
        with self._reading, self._typed():
            yield self._reader

    def close(self) -> None:
        """Of no effect if it was."""
        with self._writing, self._reading:
            _close(self._reader, self._writer)

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def _trouble(self, error: sqlite3.Error) -> NotReady:
        if _is_full(self.path, error):
            return DiskFull("the disk has no room for the record of jobs")
        kind = _kind(error)
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return NotReady("another process holds the record of jobs; try again in a moment")
        return NotReady(f"the record of jobs can't be used: {error}")


def _kind(error: BaseException) -> int:
    # The low byte is the kind, the rest says more of it (sqlite.org/rescode.html).
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_full(path: Path | None, error: BaseException) -> bool:
    if _kind(error) != sqlite3.SQLITE_IOERR or path is None:
        return _kind(error) == sqlite3.SQLITE_FULL
    return shutil.disk_usage(path.parent).free < SPARE_BYTES


def _close(*connections: sqlite3.Connection) -> None:
    for connection in connections:
        connection.close()


def _identity(path: Path | None) -> tuple[int, int] | None:
    """What tells the file of this name from another one; None for no file."""
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _open(path: Path) -> sqlite3.Connection:
    """A connection that writes, after everything that may be wrong with the file has been looked for."""
    connection = None
    try:
        # Prompts are in it: for nobody else's eyes, from its first byte on.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = _connect(str(path))
        _judge(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        _migrate(connection)
    except (OSError, sqlite3.Error) as error:
        if connection is not None:
            connection.close()
        raise _unopened(path, error) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(str(path), timeout=0.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = 1")
    return connection


def _judge(connection: sqlite3.Connection, path: Path) -> None:
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise _unusable(path, f"it is damaged ({'; '.join(str(line) for line in found)[:200]})")
    version = _number(connection, "user_version")
    if version > len(MIGRATIONS):
        raise _unusable(
            path, f"it is of version {version}, written by a newer release; this one knows {len(MIGRATIONS)}"
        )
    is_new = not _number(connection, "schema_version")
    if not is_new and _number(connection, "application_id") != APPLICATION:
        raise _unusable(path, "it is another program's database")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _migrate(connection: sqlite3.Connection) -> None:
    """Each step and its number in one transaction: an interrupted one has not happened."""
    for version in range(_number(connection, "user_version"), len(MIGRATIONS)):
        numbers = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {version + 1};"
        connection.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[version]}; {numbers} COMMIT;")


def _unopened(path: Path, error: OSError | sqlite3.Error) -> SettingsError:
    """Nobody is told to move a file away that only can't be read or written at the moment."""
    why = str(getattr(error, "strerror", None) or error)
    if getattr(error, "errno", None) == errno.ENOSPC or _is_full(path, error):
        return _unusable(path, "the disk is full", "a folder on a disk with room")
    is_broken = _kind(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return _unusable(path, why, WHOLE if is_broken else "a folder that can be read and written, and of no one else")


def _unusable(path: Path, why: str, legal: str = WHOLE) -> SettingsError:
    message = f"the record of jobs {path} can't be used: {why}"
    return SettingsError(message, [Offence("H3_DATA_DIR", message, legal)])

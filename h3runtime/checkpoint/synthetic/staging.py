"""Several files that appear in a folder together, or not at all: made in a folder inside it, then moved into place.

What is there already is refused unless it may be replaced. Whatever ends the block early (an error, Ctrl-C), nothing of
it stays, and folders that were made for it go too; what a process that was killed has left goes with the next one's
start. Fed by `synthesis`; it knows no checkpoints.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from h3runtime.errors import DiskFull, Offence, OutputExists, invalid

PREFIX = ".synth-"
FRESH = 10.0
"""Seconds in which a stage may have been made and not been locked yet."""


@contextmanager
def staged(folder: Path, names: Mapping[str, int | None], *, overwrite: bool) -> Iterator[Path]:
    """A folder inside `folder` whose contents move there, oldest first, when the block ends well; gone in any case.

    names: what must not be there yet, each with the size at which it may be all the same (there is nothing in it to
    lose) or None. OutputExists lists those in the way; contents of other names are replaced. A full disk is DiskFull.
    """
    _refuse_taken(folder, names, overwrite=overwrite)
    made = _missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stage = folder / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        _sweep(folder)
        # Its name is known before it is made: Ctrl-C at any moment leaves nothing that this doesn't find.
        with _gone_afterwards(stage):
            stage.mkdir(mode=0o700)
            with _held(stage):
                yield stage
                for moved in sorted(stage.iterdir(), key=lambda path: path.stat().st_mtime_ns):
                    _move(moved, folder / moved.name)
    except BaseException as error:
        for created in made:
            with suppress(OSError):
                created.rmdir()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{folder}: the disk is full", [Offence("DIR", "the disk is full")]) from None
        raise


@contextmanager
def _gone_afterwards(stage: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def _held(stage: Path) -> Iterator[bool]:
    """Locked as long as the process lives, so that nobody else takes it for left over; whether that was free to do."""
    handle = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _lock(handle)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Not where somebody holds it, nor where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(folder: Path) -> None:
    """Stages that nobody holds, but for those that may be a moment away from it."""
    for stage in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - stage.stat().st_mtime > FRESH:
                with _held(stage) as free:
                    if free:
                        shutil.rmtree(stage, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for inner in source.iterdir():
            _move(inner, target / inner.name)
    else:
        source.replace(target)


def _missing(folder: Path) -> list[Path]:
    """The folders that have to be made, the deepest first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _refuse_taken(folder: Path, names: Mapping[str, int | None], *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise invalid([Offence("DIR", f"{folder} is not a folder", "a folder, or a name that is free")])
    taken = [name for name, spare in names.items() if (folder / name).exists() and _size(folder / name) != spare]
    if taken and not overwrite:
        legal = "another folder, or --overwrite"
        raise OutputExists(f"{folder}: {', '.join(taken)} exists", [Offence(name, "exists", legal) for name in taken])


def _size(path: Path) -> int:
    """Of a file; of nothing else."""
    return path.stat().st_size if path.is_file() else -1

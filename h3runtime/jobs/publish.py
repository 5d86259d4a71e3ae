"""Staged files to their final names: all of them or none, over nobody's file unless told so, and safe to repeat.

Without `overwrite` a name is taken by a hard link, which fails where anything is; staged names go once all final ones
are there. So whenever the process is killed, each file is under one of its names or both, whole, and doing all of it
again completes it: a final name that is the staged file, or has the clip's SHA-256, counts as placed. With `overwrite`
each is renamed over what is there. The engine has synced the clips; all is synced here before and after.

`queue` calls it once the result is in the job's row, and at start for a row that holds one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from h3runtime.errors import H3Error, Offence, OutputExists
from h3runtime.jobs.outputs import Placement
from h3runtime.media.delivery import NO_HARD_LINKS, disk_error

STAGE = "mux"
"""The stage in which an error of the disk is told: the last that a client knows."""


class Lost(Exception):
    """A file of the result is neither staged nor placed: there is nothing to publish."""


def place(files: Iterable[Placement], *, overwrite: bool, resumed: bool = False) -> tuple[Placement, ...]:
    """Those that are there, under their final names and on disk. OutputExists, JobDiskFull, EncoderFailed for another
    fault of the disk: no staged file has a final name then that it didn't have before. Lost.

    resumed: an earlier process was killed in this, so that an empty file is its claim to a name (`_claim_and_rename`).
    """
    put: list[Placement] = []
    try:
        todo = [file for file in files if file.is_clip or _is_there(file.staged) or _is_there(file.final)]
        for folder in {file.final.parent for file in todo}:
            folder.mkdir(parents=True, exist_ok=True)
        for file in todo:
            if _place(file, overwrite, resumed):
                put.append(file)
        for file in todo:
            file.staged.unlink(missing_ok=True)
        _sync_folders(todo)
    except OutputExists:
        withdraw(put)
        raise
    except OSError as error:
        withdraw(put)
        raise _disk_error(error) from error
    return tuple(todo)


def withdraw(files: Iterable[Placement]) -> None:
    """Take final names away again. Never fails."""
    for file in files:
        with suppress(OSError):
            file.final.unlink(missing_ok=True)


def _place(file: Placement, overwrite: bool, resumed: bool) -> bool:
    """True if it has its final name by this call, False if it had it."""
    if not _is_there(file.staged):
        if not _is_ours(file):
            raise Lost
        return False
    _sync(file.staged)
    if overwrite or (resumed and _is_claim(file.final)):
        file.staged.replace(file.final)
        return True
    try:
        os.link(file.staged, file.final)
    except FileExistsError:
        if _same(file.staged, file.final) or _is_ours(file):
            return False
        raise _exists(file.final) from None
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return _claim_and_rename(file)
    return True


def _claim_and_rename(file: Placement) -> bool:
    """Where there are no hard links: an empty file takes the name in the moment before the rename covers it."""
    try:
        os.close(os.open(file.final, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        raise _exists(file.final) from None
    file.staged.replace(file.final)
    return True


def _is_claim(path: Path) -> bool:
    return _is_there(path) and path.stat().st_size == 0


def _is_there(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _same(one: Path, other: Path) -> bool:
    return not other.is_symlink() and one.samefile(other)


def _is_ours(file: Placement) -> bool:
    """The final name holds this very clip; of what lies beside one, that it is there must do."""
    if not _is_there(file.final):
        return False
    if not file.is_clip:
        return not _is_there(file.staged)
    with file.final.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folders(files: Iterable[Placement]) -> None:
    for folder in {file.final.parent for file in files}:
        _sync(folder)


def _exists(final: Path) -> OutputExists:
    message = f"output {final.name!r}: a file of this name has appeared since the job was admitted"
    return OutputExists(message, [Offence("output", message, "a name that nobody else uses, or overwrite: true")])


def _disk_error(error: OSError) -> H3Error:
    if isinstance(error, IsADirectoryError):
        message = "a folder has the name of the output"
        return OutputExists(message, [Offence("output", message, "another name")])
    return disk_error(error, STAGE)

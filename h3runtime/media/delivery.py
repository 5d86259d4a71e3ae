"""A finished temporary file to its final name: all there, on disk, or not there at all.

`mux` and `sound` hand files over; the name under which a client looks for a clip never holds a part of one. The
temporary file must be on the file system of the output.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from h3runtime.errors import EncoderFailed, H3Error, JobDiskFull, Offence, OutOfMemory, OutputExists

NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def deliver(finished: Path, output: Path, *, overwrite: bool) -> tuple[int, str]:
    """Sync, hash and rename; the file's size and its SHA-256.

    Without `overwrite` the final name is taken in one step that fails if anyone holds it: `OutputExists`. `finished` is
    gone afterwards unless an error was raised. Other file-system errors pass as `OSError`; see `disk_error`.
    """
    with finished.open("rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if overwrite:
        finished.replace(output)
    else:
        _place_new(finished, output)
    _sync_folder(output.parent)
    return size, digest


def refuse_existing(output: Path, *, overwrite: bool) -> None:
    """`OutputExists` early, before work; `deliver` decides again."""
    if not overwrite and os.path.lexists(output):
        raise exists(output)


def exists(output: Path) -> OutputExists:
    message = f"{output.name} exists already"
    return OutputExists(message, [Offence("output", message, "a name not in use, or overwrite")])


def disk_error(error: OSError, stage: str) -> H3Error:
    """A file-system error while writing, as the typed end of a job; names no path."""
    if error.errno in FULL:
        return JobDiskFull("The disk is full; the unfinished file was removed", stage=stage)
    if error.errno == errno.ENOMEM:
        return OutOfMemory("the host's memory is full", stage=stage)
    return EncoderFailed(f"A file can't be written: {error.strerror or type(error).__name__}", stage=stage)


def _place_new(finished: Path, output: Path) -> None:
    try:
        os.link(finished, output)
    except FileExistsError as error:
        raise exists(output) from error
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        _claim(output)
        finished.replace(output)
    else:
        finished.unlink()


def _claim(output: Path) -> None:
    """On file systems without hard links: an empty file takes the name, in the moment before the rename covers it."""
    try:
        os.close(os.open(output, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError as error:
        raise exists(output) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

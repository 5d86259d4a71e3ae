"""One safetensors file, open for reading: its header judged on opening, then bytes on demand.

Reading is `preadv` into memory we own, never a mapping: a file that is cut short while open gives a `CheckpointError`
where a mapping would kill the process with SIGBUS. It knows bytes and offsets; what the tensors mean is for `file`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.header import FILE, Header, HeaderError, header_length, parse_header
from h3runtime.errors import CheckpointError, Offence

SHOWN = 40
"""Offenders that a message spells out; all are in `offences`."""


def checkpoint_error(path: Path, offences: Iterable[Offence]) -> CheckpointError:
    """One error for one file, its message naming the file (not its folder) and the offenders."""
    listed = tuple(offences)
    clauses = [o.message if o.field == FILE else f"{o.field} {o.message}" for o in listed[:SHOWN]]
    clauses = [c + (f" (legal: {o.legal})" if o.legal else "") for c, o in zip(clauses, listed, strict=False)]
    more = f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return CheckpointError(f"{path.name}: {'; '.join(clauses)}{more}", listed)


@dataclass(frozen=True, slots=True)
class Identity:
    """What changes when a file is replaced or written to: path, size in bytes, modification time in ns, inode."""

    path: str
    size: int
    mtime_ns: int
    inode: int


class TensorFile:
    """path, size, identity: as opened. header: judged. Raises CheckpointError that lists every offender."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _open(path)
        try:
            self.identity = self.identity_now()
            self.size = self.identity.size
            self.header = self._header()
        except BaseException:
            self.close()
            raise

    def identity_now(self) -> Identity:
        """Of the open file, as it is now; of the path's present file if that was replaced."""
        found = os.fstat(self._fd)
        return Identity(str(self.path.resolve()), found.st_size, found.st_mtime_ns, found.st_ino)

    def _header(self) -> Header:
        try:
            first = self.pread(0, min(8, self.size))
            length = header_length(first, self.size)
            return parse_header(self.pread(8, length), self.size)
        except HeaderError as fault:
            raise checkpoint_error(self.path, fault.offences) from None

    @property
    def data_start(self) -> int:
        return self.header.data_start

    def pread(self, offset: int, count: int) -> bytes:
        """`count` bytes at `offset` of the file."""
        buffer = bytearray(count)
        if count:
            self.fill(memoryview(buffer), offset, FILE)
        return bytes(buffer)

    def fill(self, view: memoryview, offset: int, name: str) -> None:
        """Fill `view` from `offset` of the file; the kernel may give less than asked for (2 GiB at most), so ask on.

        `name` is what the error names: a tensor, or FILE.
        """
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise checkpoint_error(self.path, [Offence(name, f"can't be read: {reason(error)}")]) from None
            if got == 0:
                raise checkpoint_error(self.path, [Offence(name, "can't be read: the file was cut short while open")])
            done += got

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()


def _open(path: Path) -> int:
    """A descriptor of a regular file. O_NONBLOCK: opening a named pipe must not wait for its writer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, [Offence(FILE, f"can't be opened: {reason(error)}")]) from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise checkpoint_error(path, [Offence(FILE, f"can't be opened: it is {what}")])
    return fd


def reason(error: Exception) -> str:
    """Why the system said no, without the path."""
    if isinstance(error, OSError) and error.errno is not None:
        return {errno.ENOENT: "no such file", errno.EACCES: "permission denied"}.get(
            error.errno, os.strerror(error.errno).lower()
        )
    return "illegal path"

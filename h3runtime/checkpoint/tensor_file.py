"""One safetensors file, open for reading: its header judged on opening, then bytes on demand.

Reading is `preadv` into memory we own, never a mapping: a file that is cut short while open gives a `CheckpointError`
where a mapping would kill the process with SIGBUS. What has been read can be taken out of the page cache, where dozens
of gigabytes that nobody needs again would push out what the machine's other programs use. It knows bytes and offsets;
what the tensors mean is for `file`.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.header import FILE, Header, HeaderError, header_length, parse_header
from h3runtime.errors import CheckpointError, Offence

PAGE_BYTES = mmap.PAGESIZE
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
            self.identity = self._identity()
            self.size = self.identity.size
            self.header = self._header()
        except BaseException:
            self.close()
            raise

    def _identity(self) -> Identity:
        found = os.fstat(self._fd)
        return Identity(str(self.path.resolve()), found.st_size, found.st_mtime_ns, found.st_ino)

    def require_unchanged(self) -> None:
        """CheckpointError if the file was written to, or another put in its place, since it was opened: then what was
        read may be some of the one and some of the other."""
        what = self._change()
        if what is not None:
            raise checkpoint_error(
                self.path, [Offence(FILE, f"{what} while it was read", "a file that stays as it is")]
            )

    def _change(self) -> str | None:
        open_one = os.fstat(self._fd)
        if (open_one.st_size, open_one.st_mtime_ns) != (self.identity.size, self.identity.mtime_ns):
            return "was written to"
        try:
            return None if os.path.samestat(open_one, self.path.stat()) else "was replaced"
        except OSError:
            return "was removed"

    def expect_sequential(self) -> None:
        """Tell the kernel to read ahead farther than usual. Advice: a file system may ignore it."""
        advise(self._fd, "SEQUENTIAL")

    def drop(self, stop: int | None = None) -> None:
        """Take the first `stop` bytes of the file, by default all of it, out of the page cache.

        Not the page that `stop` lies in, which who reads on needs. The kernel keeps pages in groups of some megabytes
        and drops only whole ones, so that what an earlier call left of a group goes with a later one.
        """
        if stop is None or stop >= self.size:
            advise(self._fd, "DONTNEED")
        elif stop >= PAGE_BYTES:
            advise(self._fd, "DONTNEED", 0, stop - stop % PAGE_BYTES)

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

    def fill(self, view: memoryview, offset: int, name: str | None = None) -> None:
        """Fill `view` from `offset` of the file; the kernel may give less than asked for (2 GiB at most), so ask on.

        `name` is what the error names: a tensor, or FILE; None for the tensor where reading ended.
        """
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(name, offset + done, reason(error)) from None
            if got == 0:
                raise self._unreadable(name, offset + done, "the file was cut short while open")
            done += got

    def _unreadable(self, name: str | None, offset: int, why: str) -> CheckpointError:
        if name is None:
            at = offset - self.data_start
            name = next((e.name for e in self.header.entries.values() if e.start <= at < e.stop), FILE)
        return checkpoint_error(self.path, [Offence(name, f"can't be read: {why}")])

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


def advise(fd: int, advice: str, start: int = 0, count: int = 0) -> None:
    """`posix_fadvise`, where the system has it. advice: the end of its name; count 0 is to the end of the file."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(fd, start, count, getattr(os, f"POSIX_FADV_{advice}"))


def reason(error: Exception) -> str:
    """Why the system said no, without the path."""
    if isinstance(error, OSError) and error.errno is not None:
        return {errno.ENOENT: "no such file", errno.EACCES: "permission denied"}.get(
            error.errno, os.strerror(error.errno).lower()
        )
    return "illegal path"

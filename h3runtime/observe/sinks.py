"""Where log lines go, and what happens when they can't: the service goes on without them.

A reader may have closed the pipe, have stopped reading it, or the disk may be full. Then lines are dropped until the
target takes them again, and the first line after that says how many were lost. Nothing is raised, nothing is printed
elsewhere, and nobody waits for a reader for longer than a moment.

    Stream     a descriptor, or any text stream, without a buffer of its own: nothing is left to flush at the exit
    Rotated    a file that begins anew when it is full

Made by `logs`; fed by the logging module, one line at a time and under its lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import stat
from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

PIPE_PIECE = 4096
"""Bytes that a pipe takes whole once it says that it takes any (PIPE_BUF of pipe(7))."""
PATIENCE_MS = 50
"""How long one piece may wait for a slow reader; the loop that answers everybody waits with it."""


class _Losing(logging.Handler, ABC):
    """A handler that counts the lines it can't write."""

    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write(self._told_loss() + self.format(record) + "\n")
        except (OSError, ValueError):
            # ValueError: the stream is closed.
            self.lost += 1
        except Exception:
            # A line that can't be formatted is our bug; it costs the line, not the service.
            self.lost += 1
        else:
            self.lost = 0

    @abstractmethod
    def write(self, text: str) -> None:
        """Put a whole line out. OSError or ValueError if it can't be."""

    def _told_loss(self) -> str:
        if not self.lost:
            return ""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        told = {"time": now, "level": "warning", "event": "log_lines_lost", "logger": __name__, "lines": self.lost}
        return json.dumps(told) + "\n"


class Stream(_Losing):
    """Lines to a text stream; to its descriptor if it has one."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._pen: _Pen | None = None
        if (fd := _descriptor(stream)) is not None:
            # What others have printed comes first, and nothing is left that would fail at the exit.
            stream.flush()
            self._pen = _Pen(fd)

    def write(self, text: str) -> None:
        if self._pen is None:
            self._stream.write(text)
            self._stream.flush()
        elif self._stream.closed:
            # Its number may be another file's by now.
            raise ValueError("the stream is closed")
        else:
            self._pen.write(text)


class Rotated(_Losing):
    """Lines to a file, which is renamed to `.1` before it gets larger than `size` bytes; `kept` old ones stay.

    OSError if it can't be opened. Several processes may write the same one: each appends whole lines, and whoever finds
    that another has begun a new file goes on in that one.
    """

    def __init__(self, file: Path, size: int, kept: int) -> None:
        super().__init__()
        self._file, self._size, self._kept = file, size, kept
        self._fd = -1
        self._open()

    def write(self, text: str) -> None:
        if self._fd < 0:
            raise ValueError("the file was closed for good")
        if not self._is_current():
            self._open()
        elif os.fstat(self._fd).st_size + len(text) > self._size:
            self._rotate()
        self._pen.write(text)

    def close(self) -> None:
        """Of no effect if it was: `logging` closes every handler once more at the exit."""
        with self.lock or nullcontext():
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
        super().close()

    def _open(self) -> None:
        """The file in use stays so until the new one is open."""
        before = self._fd
        self._fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pen = _Pen(self._fd)
        if before >= 0:
            os.close(before)

    def _is_current(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._fd), self._file.stat())
        return False

    def _rotate(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Another process may have been first.
        if self._is_current():
            older = [self._file.with_name(f"{self._file.name}.{number}") for number in range(self._kept, 0, -1)]
            for late, early in zip(older, [*older[1:], self._file], strict=True):
                if early.exists():
                    early.replace(late)
        self._open()


class _Pen:
    """Writes whole lines to a descriptor, or part of one and then no more until the next line has begun."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._has_reader = not stat.S_ISREG(os.fstat(fd).st_mode)
        self._torn = False

    def write(self, text: str) -> None:
        # The half of a line that got out must not run into the next one.
        lead = int(self._torn)
        data = b"\n" * lead + text.encode()
        done = 0
        try:
            while done < len(data):
                if self._has_reader:
                    _wait_for_room(self._fd)
                done += os.write(self._fd, data[done : done + PIPE_PIECE])
        finally:
            self._torn = lead < done < len(data) or (self._torn and done == 0)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _wait_for_room(fd: int) -> None:
    """TimeoutError if nobody makes any; a pipe whose reader is gone says at once that it has some."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if not poll.poll(PATIENCE_MS):
        raise TimeoutError

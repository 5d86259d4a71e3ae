"""One server a data folder: a lock that the kernel gives back when its holder ends, however it ends.

    <data>/lock        held by flock; holds the holder's process id as text, for whoever is refused

A file that a killed server left behind is no obstacle. The descriptor isn't inherited: the engine process, which may
outlive a killed server by a moment, doesn't keep the folder. Taken by `files`; commands that make one clip take none.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from h3runtime.errors import Offence, SettingsError

NAME = "lock"
WAIT_SECONDS = 0.5
"""The holder takes the lock and then writes its number; whoever comes between the two waits so long for it."""
MAX_BYTES = 32


class DataLock:
    """Holds `folder`, which exists, until `close`. SettingsError naming the process that holds it already."""

    def __init__(self, folder: Path) -> None:
        try:
            self._fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(folder, f"its lock can't be opened: {(error.strerror or str(error)).lower()}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._fd)
            self.close()
            raise unusable(folder, f"another server{f' (pid {holder})' if holder else ''} uses it") from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give the folder back; of no effect if it was."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _holder(fd: int) -> str:
    """The number in the file; "" if none comes."""
    until = time.monotonic() + WAIT_SECONDS
    while not (found := os.pread(fd, MAX_BYTES, 0).decode(errors="replace").strip()) and time.monotonic() < until:
        time.sleep(0.01)
    return found if found.isdecimal() else ""


def unusable(folder: Path, why: str, setting: str = "H3_DATA_DIR") -> SettingsError:
    """`folder` can't hold what a server keeps. setting: the one that named it."""
    message = f"the folder {folder} can't be used: {why}"
    return SettingsError(message, [Offence(setting, message, "a folder of its own that can be written to")])

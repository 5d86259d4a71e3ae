"""A control group of its own for one child process, with a limit on memory, of whichever version the machine has.

    v1    <root>/memory/<own group>/h3-load-<pid>      memory.limit_in_bytes, and memory.memsw.limit_in_bytes with swap
    v2    <root>/<some group above>/h3-load-<pid>      memory.max, and memory.swap.max = 0

A group of v2 that has processes can't share its memory out to groups below it. So the nearest group upwards that shares
it already gets the new one; where none does and this one may be written to, the processes in it are put into a group
beside for as long as the test lasts. `open_group` is None where no group can be made (no root, a read-only /sys).

Page cache that the child reads counts as its own, as the kernel has it in both versions.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NAME = "h3-load-"
CONTROLLER = "memory"
REMOVAL_SECONDS = 5.0


class MemoryGroup(Protocol):
    """bytes, page cache among them; hits: how often the limit was met; kills: how often the kernel killed for it."""

    folder: Path
    version: int

    def used(self) -> int: ...

    def cached(self) -> int: ...

    def limit(self, nbytes: int) -> None: ...

    def peak(self) -> int:
        """The most that was used since `limit`."""
        ...

    def hits(self) -> int: ...

    def kills(self) -> int: ...


@dataclass
class FirstVersion:
    folder: Path
    version: int = 1

    def used(self) -> int:
        return _number(self.folder / "memory.usage_in_bytes")

    def cached(self) -> int:
        return _table(self.folder / "memory.stat")["cache"]

    def limit(self, nbytes: int) -> None:
        (self.folder / "memory.limit_in_bytes").write_text(str(nbytes))
        # Of memory and swap together, so that nothing is swapped out instead; only there where swap is counted.
        both = self.folder / "memory.memsw.limit_in_bytes"
        if both.exists():
            both.write_text(str(nbytes))
        (self.folder / "memory.max_usage_in_bytes").write_text("0")

    def peak(self) -> int:
        return _number(self.folder / "memory.max_usage_in_bytes")

    def hits(self) -> int:
        return _number(self.folder / "memory.failcnt")

    def kills(self) -> int:
        return _table(self.folder / "memory.oom_control").get("oom_kill", 0)


@dataclass
class SecondVersion:
    folder: Path
    version: int = 2

    def used(self) -> int:
        return _number(self.folder / "memory.current")

    def cached(self) -> int:
        return _table(self.folder / "memory.stat")["file"]

    def limit(self, nbytes: int) -> None:
        (self.folder / "memory.max").write_text(str(nbytes))
        swap = self.folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def peak(self) -> int:
        """Of the group's whole life; kernels before 5.19 don't tell, and then it is what is used now."""
        with suppress(FileNotFoundError):
            return _number(self.folder / "memory.peak")
        return self.used()

    def hits(self) -> int:
        return _table(self.folder / "memory.events")["max"]

    def kills(self) -> int:
        return _table(self.folder / "memory.events").get("oom_kill", 0)


def add(group: MemoryGroup, pid: int) -> None:
    (group.folder / "cgroup.procs").write_text(str(pid))


@contextmanager
def open_group(root: Path = ROOT, own: Path = OWN) -> Iterator[MemoryGroup | None]:
    """Gone afterwards, with whatever process is left in it."""
    with _made(root, own) as group:
        try:
            yield group
        finally:
            if group is not None:
                remove(group.folder)


@contextmanager
def _made(root: Path, own: Path) -> Iterator[MemoryGroup | None]:
    paths = dict(_paths(own.read_text()))
    name = f"{NAME}{os.getpid()}"
    if 1 in paths:
        parent = _within(root / CONTROLLER, paths[1])
        yield FirstVersion(_new(parent / name)) if _is_writable(parent) else None
        return
    above = _within(root, paths.get(2, "/"))
    shared = next((level for level in _upwards(above, root) if _shares(level) and _is_writable(level)), None)
    if shared is not None:
        yield SecondVersion(_new(shared / name))
    elif _is_writable(above) and CONTROLLER in (above / "cgroup.controllers").read_text().split():
        with _emptied(above):
            yield SecondVersion(_new(above / name))
    else:
        yield None


def _paths(text: str) -> Iterator[tuple[int, str]]:
    """Of the memory controller: (version, path). `4:memory:/job` of v1, `0::/job` of v2."""
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if CONTROLLER in controllers.split(","):
            yield 1, path
        elif number == "0":
            yield 2, path


def _within(root: Path, path: str) -> Path:
    """In a container the path may be the host's: then its own root is the one that is there."""
    folder = root / path.lstrip("/")
    return folder if folder.is_dir() else root


def _upwards(folder: Path, root: Path) -> Iterator[Path]:
    for level in (folder, *folder.parents):
        yield level
        if level == root:
            return


def _shares(level: Path) -> bool:
    with suppress(OSError):
        return CONTROLLER in (level / "cgroup.subtree_control").read_text().split()
    return False


def _is_writable(level: Path) -> bool:
    return os.access(level, os.W_OK) and os.access(level / "cgroup.procs", os.W_OK)


@contextmanager
def _emptied(group: Path) -> Iterator[None]:
    """Its processes are in a group below while it shares out its memory, and back in it afterwards."""
    aside = group / f"{NAME}aside-{os.getpid()}"
    _make(aside)
    try:
        _move_all(group, aside)
        (group / "cgroup.subtree_control").write_text(f"+{CONTROLLER}")
        yield
    finally:
        with suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"-{CONTROLLER}")
        _move_all(aside, group)
        _rmdir(aside)


def _move_all(here: Path, there: Path) -> None:
    for pid in _processes(here):
        # One that ended meanwhile; a kernel's own thread can't be moved.
        with suppress(ProcessLookupError, OSError):
            (there / "cgroup.procs").write_text(str(pid))


def _new(folder: Path) -> Path:
    """Beside it whatever an earlier run left, which was killed, goes."""
    for left in folder.parent.glob(f"{NAME}[0-9]*"):
        if not Path(f"/proc/{left.name.removeprefix(NAME)}").exists():
            remove(left)
    _make(folder)
    return folder


def _make(folder: Path) -> None:
    """The kernel fills it with its files."""
    folder.mkdir()


def _unmake(folder: Path) -> None:
    """The kernel takes its files away."""
    folder.rmdir()


def remove(folder: Path) -> None:
    """Whoever is still in it is killed."""
    for pid in _processes(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _rmdir(folder)


def _rmdir(folder: Path) -> None:
    """A process that ended is counted a moment longer."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    while folder.is_dir():
        try:
            _unmake(folder)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _processes(folder: Path) -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    return []


def _number(path: Path) -> int:
    return int(path.read_text())


def _table(path: Path) -> Mapping[str, int]:
    return {words[0]: int(words[1]) for words in map(str.split, path.read_text().splitlines()) if len(words) == 2}

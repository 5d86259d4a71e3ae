"""Control groups that limit this process's memory, of either version, from the kernel's own files, in bytes.

    v2    memory.max, memory.current, memory.stat, of the group and of each one above it
    v1    memory.limit_in_bytes, memory.usage_in_bytes, memory.stat: figures of whole trees, and the least limit above,
          which a container can't see

Page cache isn't counted as used, since the kernel gives it back before it kills. A group without a limit isn't listed.
Fed by /proc/self/cgroup and /sys/fs/cgroup; read by `engine.memory_budget`. Reads counters only, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
CONTROLLER = "memory"
UNLIMITED = 2**62
"""v1 has no word for it: its largest limit is 2^63 less a page, in whole pages (PAGE_COUNTER_MAX)."""


@dataclass(frozen=True, slots=True)
class LimitedGroup:
    """limit, used: bytes; used without page cache."""

    limit: int
    used: int

    @property
    def room(self) -> int:
        return max(0, self.limit - self.used)


def limited_groups(root: Path = ROOT, own: Path = OWN) -> tuple[LimitedGroup, ...]:
    """Every limited group that this process is in, innermost first; none where nothing can be read."""
    with suppress(OSError, ValueError):
        return tuple(found for line in own.read_text().splitlines() for found in _of_line(line, root))
    return ()


def _of_line(line: str, root: Path) -> Iterator[LimitedGroup]:
    """line: `0::/job` of v2, `4:memory:/job` of v1."""
    number, controllers, path = line.split(":", 2)
    if number == "0":
        yield from _upwards(root, path, _second)
    elif CONTROLLER in controllers.split(","):
        yield from _upwards(root / CONTROLLER, path, _first)


def _upwards(root: Path, path: str, read: Callable[[Path], LimitedGroup]) -> Iterator[LimitedGroup]:
    folder = root / path.lstrip("/")
    # In a container the path may be the host's: then its own root is the one that is there.
    folder = folder if folder.is_dir() else root
    for level in (folder, *folder.parents):
        with suppress(OSError, ValueError):
            if (found := read(level)).limit < UNLIMITED:
                yield found
        if level == root:
            return


def _second(folder: Path) -> LimitedGroup:
    """ValueError for a limit of `max`."""
    limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
    stat = _stat(folder)
    return LimitedGroup(limit, max(0, used - stat.get("active_file", 0) - stat.get("inactive_file", 0)))


def _first(folder: Path) -> LimitedGroup:
    limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
    stat = _stat(folder)
    cached = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return LimitedGroup(min(limit, stat.get("hierarchical_memory_limit", limit)), max(0, used - cached))


def _number(path: Path) -> int:
    return int(path.read_text())


def _stat(folder: Path) -> Mapping[str, int]:
    """`memory.stat`; empty where it can't be read."""
    with suppress(OSError, ValueError):
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return {words[0]: int(words[1]) for words in lines if len(words) == 2}
    return {}

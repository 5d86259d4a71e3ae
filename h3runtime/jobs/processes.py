"""Ending a process together with everything it has started, and asking the kernel whether it did so itself.

The engine leads a session of its own; encoders that it starts may lead process groups of their own, so a signal to one
group is not enough. On Linux the whole family is read from /proc; elsewhere the group is all that is known.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
VMSTAT = PROC / "vmstat"


def end_descendants(leader: int) -> None:
    """SIGKILL to all that descend from `leader` or belong to its session, but not to `leader` itself."""
    for pid in _family(leader):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_family(leader: int) -> None:
    """SIGKILL to the session leader `leader`, its process group, and all that it started."""
    relatives = _family(leader)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for pid in [leader, *relatives]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def oom_kills(vmstat: Path = VMSTAT) -> int:
    """Processes that the kernel has killed for want of memory since boot, in whatever container; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in vmstat.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _family(leader: int) -> list[int]:
    parents, sessions = _processes()
    members = {pid for pid, session in sessions.items() if session == leader} - {leader}
    known = {leader} | members
    # A child is listed after its parent or before it, so look again until nobody is new.
    while found := {pid for pid, parent in parents.items() if parent in known and pid not in known}:
        known |= found
    return sorted(known - {leader})


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    """pid -> parent, pid -> session, of every process that can be seen."""
    parents, sessions = {}, {}
    for entry in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # proc(5): the name is in brackets and may hold anything; then state, ppid, pgrp, session.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
            sessions[int(entry.parent.name)] = int(fields[3])
    return parents, sessions

"""What this process and this machine have in memory, in bytes, from the kernel's own files.

Does: resident size now and at its peak, memory in all and available to new work. Does not: devices, whose peaks reach
`observe` as plain numbers from the engine, which is where torch is; control groups (`control_groups`).
Fed by: /proc. Read by: `engine` (figures of `/ready` and of a job on the CPU) and `api` (what is available now).

Where there is no /proc, the peak comes from getrusage and stands in for the resident size; available memory is 0, which
readers take as unknown.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
MEMINFO = Path("/proc/meminfo")
CLEAR_REFS = Path("/proc/self/clear_refs")
KIB = 1024


def resident_bytes(status: Path = STATUS) -> int:
    """Bytes of this process in RAM now (VmRSS)."""
    found = _kib(status, "VmRSS")
    return _usage_peak() if found is None else found * KIB


def peak_resident_bytes(status: Path = STATUS) -> int:
    """Most bytes this process had in RAM (VmHWM) since it began or since `reset_peak`."""
    found = _kib(status, "VmHWM")
    return _usage_peak() if found is None else found * KIB


def total_bytes(meminfo: Path = MEMINFO) -> int:
    """Bytes that the kernel has in all (MemTotal); 0 if unknown."""
    return (_kib(meminfo, "MemTotal") or 0) * KIB


def available_bytes(meminfo: Path = MEMINFO) -> int:
    """Bytes that new work can have without swapping (MemAvailable); 0 if unknown. Knows no container limit."""
    return (_kib(meminfo, "MemAvailable") or 0) * KIB


def reset_peak(clear_refs: Path = CLEAR_REFS) -> None:
    """Start the peak over at the present size. Where the kernel forbids it, the peak stays that of the whole life."""
    with contextlib.suppress(OSError):
        # 5 resets the high-water mark and touches nothing else (proc_pid_clear_refs(5)).
        clear_refs.write_text("5")


def _kib(path: Path, name: str) -> int | None:
    """The number of a `Name:   123 kB` line."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    return None


def _usage_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB elsewhere (getrusage(2)).
    return peak if sys.platform == "darwin" else peak * KIB

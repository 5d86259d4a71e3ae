"""What this engine may have of memory where it computes, in bytes: what it holds already plus what is free.

    a card with memory of its own   what PyTorch's allocator holds there, and what the driver says is free
    one that shares the host's      what PyTorch's allocator holds, and MemAvailable: CUDA counts page cache as taken
    the CPU                         what this process has in RAM, and MemAvailable

MemAvailable knows no container, so the least room that a control group (v2) on the way up leaves counts where it is
less. Reads counters only: no work on a device, from any thread. Read by `estimating`; `observe.memory` has the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from h3runtime.observe import memory

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def held_bytes(device: torch.device) -> int:
    """What this engine has there now: allocated on a device; in RAM, the whole process, on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return memory.resident_bytes()


def capacity_bytes(device: torch.device, *, is_shared: bool | None = None) -> int:
    """is_shared: whether the device has the host's memory; None asks it."""
    if device.type != "cuda":
        return memory.resident_bytes() + host_free_bytes()
    reserved = int(torch.cuda.memory_reserved(device))
    if is_shared is None:
        is_shared = bool(torch.cuda.get_device_properties(device).is_integrated)
    return reserved + (host_free_bytes() if is_shared else int(torch.cuda.mem_get_info(device)[0]))


def host_free_bytes() -> int:
    """MemAvailable, or what the process's control groups leave where that is less."""
    return min([memory.available_bytes(), *group_rooms()])


def group_rooms(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> Iterator[int]:
    """What every limited control group that this process is in leaves: its limit less what is used, page cache not
    counted, which the kernel gives back."""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                folder = root / path.lstrip("/")
                # In a container the path may be the host's: then its own root is the one that is there.
                yield from _rooms(folder if folder.is_dir() else root, root)


def _rooms(folder: Path, root: Path) -> Iterator[int]:
    for level in (folder, *folder.parents):
        with suppress(OSError, ValueError):
            limit = int((level / "memory.max").read_text())
            used = int((level / "memory.current").read_text())
            yield max(0, limit - used + _cached(level))
        if level == root:
            return


def _cached(folder: Path) -> int:
    names = ("active_file ", "inactive_file ")
    with suppress(OSError):
        lines = (folder / "memory.stat").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0

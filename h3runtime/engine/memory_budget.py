"""What an engine may have of memory where it computes, as a value: of what kind it is, and what the system keeps.

    kind           what is there                                       what is free
    cpu            the host's                                          MemAvailable
    discrete       the card's own                                      what the driver says
    integrated     the host's, which CPU and GPU share                 MemAvailable: CUDA counts page cache as taken

MemAvailable knows no container, so the room that control groups (v1, v2) leave counts too where it is less. An NVIDIA
driver takes the pages of a GPU that shares the host's memory from the kernel itself, and no group is charged for them
(reported of DGX Spark); a group that counts less than this process holds there is told what it doesn't see.

Of an integrated device the system keeps a reserve, which neither loading nor admission may eat into: when such a host
runs out of memory nobody is killed, it stands still until its power is cut (NVIDIA/open-gpu-kernel-modules #1358). A
control group's room is the service's own, so the reserve is left of what the machine has, not of that.

Pure but for `memory_of`, which reads counters: no work on a device, from any thread. Tests and `plan` make their own
values. Read by `load` (is there room for the weights?) and `estimating` (for a request?).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from h3runtime.observe import memory
from h3runtime.observe.control_groups import LimitedGroup, limited_groups
from h3runtime.settings import GIB

DeviceKind = Literal["cpu", "discrete", "integrated"]
RESERVE = 8 * GIB
"""Of an integrated device's memory. A DGX Spark shows 119.7 GiB of its 128 GB, of which a public log has 6.4 in use
(leptonai/gpud #1170). MemAvailable leaves these out already: the reserve is for what comes later, other processes, page
cache that is read again at once, and pages that the driver takes without a group being charged. Ours is a choice and no
measurement: no Spark was at hand. Who serves language models there with 0.85 to 0.87 of all there is keeps 15 to 18 GiB
in all (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark #5); 6.4 and 8 are 14."""
RESERVE_SHARE = 8
"""At most an eighth of all there is: an integrated GPU may be far smaller."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """kind: see above. total, free: bytes; 0 where unknown. held: what this process has there now: what PyTorch's
    allocator holds on a GPU, the resident size on the CPU. groups: control groups that limit the host's memory."""

    kind: DeviceKind
    total: int
    free: int
    held: int = 0
    groups: tuple[LimitedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """kind, total, free, held: of `DeviceMemory`, with limits of control groups taken in. reserve: what the system
    keeps of `total`. loadable: bytes that new weights can have; None where nothing tells."""

    kind: DeviceKind
    total: int
    free: int
    reserve: int
    held: int
    loadable: int | None

    @property
    def capacity(self) -> int:
        """What the engine may have in all: what it holds and what it can still have."""
        return self.held + (self.loadable or 0)


def budget_of(found: DeviceMemory, reserve: int | None = None) -> Budget:
    """reserve: bytes, of the settings; None is the kind's own."""
    kept = default_reserve(found) if reserve is None else reserve
    limits, rooms = [group.limit for group in found.groups], [_room(group, found) for group in found.groups]
    total = min([found.total, *limits]) if found.total else 0
    if not found.free:
        return Budget(found.kind, total, 0, kept, found.held, None)
    loadable = min([max(0, found.free - kept), *rooms])
    return Budget(found.kind, total, min([found.free, *rooms]), kept, found.held, loadable)


def default_reserve(found: DeviceMemory) -> int:
    if found.kind != "integrated":
        return 0
    return min(RESERVE, found.total // RESERVE_SHARE) if found.total else RESERVE


def _room(group: LimitedGroup, found: DeviceMemory) -> int:
    uncharged = found.held if found.kind == "integrated" and group.used < found.held else 0
    return max(0, group.room - uncharged)


def kind_of(device: torch.device) -> DeviceKind:
    """By the driver's own word, never by a name: CU_DEVICE_ATTRIBUTE_INTEGRATED."""
    if device.type != "cuda":
        return "cpu"
    return "integrated" if torch.cuda.get_device_properties(device).is_integrated else "discrete"


def memory_of(device: torch.device) -> DeviceMemory:
    """As it is now."""
    kind = kind_of(device)
    held = int(torch.cuda.memory_reserved(device)) if device.type == "cuda" else memory.resident_bytes()
    if kind == "discrete":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(kind, int(total), int(free), held)
    return DeviceMemory(kind, memory.total_bytes(), memory.available_bytes(), held, limited_groups())


def held_bytes(device: torch.device) -> int:
    """What this engine has there now: allocated on a device; in RAM, the whole process, on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return memory.resident_bytes()


def capacity_bytes(device: torch.device, reserve: int | None = None) -> int:
    """What it may have there in all, as it is now."""
    return current_budget(device, reserve).capacity


def current_budget(device: torch.device, reserve: int | None = None) -> Budget:
    return budget_of(memory_of(device), reserve)

"""Which device the models live on, and what its memory says. With `memory_budget` the only places that ask CUDA."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.engine.heap import LEFT_BYTES, trim
from h3runtime.engine.memory_budget import current_budget
from h3runtime.errors import Offence, SettingsError
from h3runtime.observe import memory
from h3runtime.vae.tile_batch import ROOM


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A concrete device, its name for people, and why it was taken."""

    device: torch.device
    name: str
    why: str


def choose_device(asked: str) -> DeviceChoice:
    """`auto` is the first CUDA device, else the CPU; a device asked for by name that is not there is SettingsError."""
    if asked == "auto":
        if torch.cuda.is_available():
            return DeviceChoice(torch.device("cuda:0"), torch.cuda.get_device_name(0), "auto: the first CUDA device")
        return DeviceChoice(torch.device("cpu"), "cpu", "auto: no CUDA device")
    device = torch.device(asked)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            found = f"{count} CUDA devices here"
            raise SettingsError(f"device {asked}: {found}", [Offence("device", f"{asked} is not there", found)])
        return DeviceChoice(device, torch.cuda.get_device_name(device), "asked for")
    return DeviceChoice(device, "cpu", "asked for")


class PeakMeter:
    """Peak bytes of stages: what tensors took, and what the allocator held for them.

    On the CPU both are the process's resident set. `peak_allocated_bytes` and `peak_reserved_bytes` are of all stages;
    `sampling` has its own, the others with `every_stage`. A stage that comes again counts by its highest peak.
    """

    def __init__(self, device: torch.device, *, every_stage: bool = False) -> None:
        self.figures: dict[str, int] = {}
        self._device, self._every_stage = device, every_stage

    def begin(self, stage: str) -> None:  # noqa: ARG002  # beside `end`
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            # glibc keeps what it is given back, in pieces that the next stage can't use: peaks would add up.
            trim(above=LEFT_BYTES)
            memory.reset_peak()

    def end(self, stage: str) -> None:
        if self._device.type == "cuda":
            allocated = torch.cuda.max_memory_allocated(self._device)
            reserved = torch.cuda.max_memory_reserved(self._device)
        else:
            allocated = reserved = memory.peak_resident_bytes()
        self._note("peak", allocated, reserved)
        if self._every_stage or stage == "sampling":
            self._note(f"peak_{stage}", allocated, reserved)

    def _note(self, name: str, allocated: int, reserved: int) -> None:
        for key, count in ((f"{name}_allocated_bytes", allocated), (f"{name}_reserved_bytes", reserved)):
            self.figures[key] = max(count, self.figures.get(key, 0))


def free_bytes(device: torch.device) -> int:
    """Bytes that nobody has there, the system's reserve among them; 0 if unknown."""
    return current_budget(device, reserve=0).free


def tile_room(device: torch.device) -> int:
    """Bytes that tiles of the video VAE may take at once: what it was made for, or half of what nobody has now. None on
    the CPU, where tiles take as long together as one by one."""
    if device.type != "cuda":
        return 0
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(ROOM, (free_bytes(device) + kept) // 2)


def memory_facts(device: torch.device, reserve: int | None = None) -> dict[str, int]:
    """What `/ready` shows: bytes available to the host, what the engine may have where it computes and what the system
    keeps of that; of a GPU total and free as budgets have them, which of a shared memory is the kernel's word."""
    budget = current_budget(device, reserve)
    facts = {"host_available_bytes": memory.available_bytes(), "host_resident_bytes": memory.resident_bytes()}
    facts |= {"capacity_bytes": budget.capacity, "system_reserve_bytes": budget.reserve}
    if device.type == "cuda":
        facts |= {"device_total_bytes": budget.total, "device_free_bytes": budget.free}
        facts["device_allocated_bytes"] = torch.cuda.memory_allocated(device)
    return facts

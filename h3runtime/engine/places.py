"""Where a plan is for: a machine of the table by its recorded facts, or this one by its own.

Facts decide which backends run there, as they do at a start. Read by `planning`; fed by the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from h3runtime.backends.attention.facts import DeviceFacts, device_facts
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.engine.device import choose_device
from h3runtime.engine.machines import CONTEXT, HERE, Machine, machine_named
from h3runtime.engine.memory_budget import DeviceMemory, memory_of
from h3runtime.settings import Settings

LIBRARIES: Final = {"comfy_kitchen": "0.2.40", "triton": "3.6.0", "h3_kernels": ""}
PARTS: Final = frozenset(
    {"comfy_kitchen/backends/cuda/_C", "h3_kernels/attention8", "h3_kernels/sparse", "h3_kernels/sparse8"}
)
SAGE: Final = {"sageattention": "2.2.0"}
"""What the image brings: comfy-kitchen with its CUDA part and, where the machine has a build of it, SageAttention 2."""
CUDA: Final = (13, 0)


@dataclass(frozen=True, slots=True)
class Place:
    """name, title: for people. device: where its models would be. memory: of it, before anything is loaded. context:
    bytes of a CUDA context, where it isn't there yet and so not taken off. sources: of the memory's numbers."""

    name: str
    title: str
    device: torch.device
    memory: DeviceMemory
    attention: DeviceFacts
    linear: LinearFacts
    context: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return self.attention.told_capability


def place_named(name: str, settings: Settings) -> Place:
    """InvalidRequest for a name that is no machine's."""
    return _here(settings) if name.lower() == HERE else _recorded(machine_named(name))


def _here(settings: Settings) -> Place:
    chosen = choose_device(settings.device)
    facts, device = device_facts(chosen.device), chosen.device
    told = "as it is now: asked of the driver and the kernel"
    sources = {"total": told, "free": told}
    return Place(HERE, chosen.name, device, memory_of(device), facts, linear_facts(device), sources=sources)


def _recorded(machine: Machine) -> Place:
    sage = {f"sageattention/{part}" for part in ("_qattn_sm80", "_qattn_sm89", "_fused")} if machine.sage2 else set()
    attention = DeviceFacts(
        kind="cuda",
        name=machine.title,
        capability=machine.capability,
        torch="2.11.0",
        cudnn=91900,
        libraries={**LIBRARIES, **(SAGE if machine.sage2 else {})},
        parts=PARTS | sage,
    )
    linear = LinearFacts("cuda", machine.capability, CUDA, LIBRARIES["comfy_kitchen"], kitchen_compiled=True)
    device = torch.device("cuda", 0)
    return Place(machine.name, machine.title, device, machine.memory, attention, linear, CONTEXT, dict(machine.sources))

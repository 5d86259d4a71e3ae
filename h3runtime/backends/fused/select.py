"""The families of fused producers and the choice among them. Read by `engine`, once, when it starts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from h3runtime.backends.fused.base import Producers
from h3runtime.backends.fused.cpu import CpuProducers
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.policy import row_of
from h3runtime.backends.select import NONE_FAILED, choose, listing
from h3runtime.core import BackendChoice


def producer_families() -> tuple[Producers, ...]:
    """All there are."""
    return (TritonProducers(), CpuProducers(), TorchProducers())


def choose_producers(name: str, device: torch.device, failed: Mapping[str, str] = NONE_FAILED) -> tuple[Producers, str]:
    """The family called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`."""
    return choose("fused", _ordered(device), name, device, failed)


def _ordered(device: torch.device) -> list[Producers]:
    """As the row of the architecture has them, the others after these."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    order = row_of(device.type, capability).producers.value
    return sorted(producer_families(), key=lambda found: order.index(found.name) if found.name in order else len(order))


def producers_choice(
    chosen: Producers, why: str, device: torch.device, failed: Mapping[str, str] = NONE_FAILED
) -> BackendChoice:
    """What `/ready` shows."""
    return listing(producer_families(), chosen.name, why, device, failed)

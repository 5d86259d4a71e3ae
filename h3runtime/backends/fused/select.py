"""The families of fused producers and the choice among them. Read by `engine`, once, when it starts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from h3runtime.backends.fused.base import Producers
from h3runtime.backends.fused.cpu import CpuProducers
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.select import NONE_FAILED, choose, listing
from h3runtime.core import BackendChoice


def producer_families() -> tuple[Producers, ...]:
    """All there are, the one that `auto` prefers first."""
    return (TritonProducers(), CpuProducers(), TorchProducers())


def choose_producers(name: str, device: torch.device, failed: Mapping[str, str] = NONE_FAILED) -> tuple[Producers, str]:
    """The family called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`."""
    return choose("fused", producer_families(), name, device, failed)


def producers_choice(
    chosen: Producers, why: str, device: torch.device, failed: Mapping[str, str] = NONE_FAILED
) -> BackendChoice:
    """What `/ready` shows."""
    return listing(producer_families(), chosen.name, why, device, failed)

"""The families of fused producers and the choice among them. Read by `engine`, once, when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import torch

from h3runtime.backends.fused.base import GATED, MODULATED, Producers
from h3runtime.backends.fused.cpu import CpuProducers
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.nvfp4_packing import why_no_kernels
from h3runtime.backends.policy import row_of
from h3runtime.backends.select import NONE_FAILED, choose, listing
from h3runtime.core import BackendChoice
from h3runtime.errors import BackendUnavailable, Offence
from h3runtime.settings import variable

SWITCHES: Final[Mapping[str, str]] = MappingProxyType(
    {MODULATED: "nvfp4_modulate_fusion", GATED: "nvfp4_swiglu_fusion"}
)
"""By what a producer makes, the setting that lets it hand NVFP4 on."""


def switched_on(options: Nvfp4Options | None) -> frozenset[str]:
    """What producers are to hand on in NVFP4."""
    return frozenset(made for made, setting in SWITCHES.items() if options and getattr(options, setting[6:]))


def producer_families(options: Nvfp4Options | None = None) -> tuple[Producers, ...]:
    """All there are. options: what an operator says of the NVFP4 path."""
    packs = switched_on(options)
    return (TritonProducers(packs), CpuProducers(packs), TorchProducers(packs))


def choose_producers(
    name: str, device: torch.device, failed: Mapping[str, str] = NONE_FAILED, options: Nvfp4Options | None = None
) -> tuple[Producers, str]:
    """The family called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`; the
    latter too where its kernels of a switch that is on can't be had."""
    chosen, why = choose("fused", _ordered(device, options), name, device, failed)
    require_fusions(chosen, linear_facts(device))
    return chosen, why


def require_fusions(chosen: Producers, facts: LinearFacts) -> None:
    """BackendUnavailable, naming the switch, where `chosen` packs by our CUDA kernels and a device of these facts
    can't run them. The other families pack as a linear does."""
    if chosen.name != TritonProducers.name or not chosen.packs or (why := why_no_kernels(facts)) is None:
        return
    settings = [setting for made, setting in SWITCHES.items() if made in chosen.packs]
    told = ", ".join(f"{variable(setting)}=true" for setting in settings)
    legal = "false; true where our CUDA kernels run, or with H3_FUSED=torch"
    offences = [Offence(variable(setting), f"true can't be had here: {why}", legal) for setting in settings]
    raise BackendUnavailable(f"{told}: {chosen.name} can't pack NVFP4 here: {why} (legal: {legal})", offences)


def _ordered(device: torch.device, options: Nvfp4Options | None) -> list[Producers]:
    """As the row of the architecture has them, the others after these."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    order, families = row_of(device.type, capability).producers.value, producer_families(options)
    return sorted(families, key=lambda found: order.index(found.name) if found.name in order else len(order))


def producers_choice(
    chosen: Producers,
    why: str,
    device: torch.device,
    failed: Mapping[str, str] = NONE_FAILED,
    options: Nvfp4Options | None = None,
) -> BackendChoice:
    """What `/ready` shows."""
    found = listing(producer_families(options), chosen.name, why, device, failed)
    if not chosen.packs:
        return found
    told = f"hands NVFP4 on where it made what is {' or '.join(sorted(chosen.packs))}"
    return replace(found, notes={**found.notes, chosen.name: told})

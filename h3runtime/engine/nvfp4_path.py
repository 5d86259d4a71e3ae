"""What of the NVFP4 path the loaded transformers take: for `/ready`, for warnings and for a run's diagnostics.

    which switch that is on (`H3_NVFP4_*`) has nothing to do with the layers that are loaded, and why
    who packs what the products read: a scale backend, the definition, or the producer before

Whether it can run is judged where it is chosen (`backends.fused.select`, `backends.linear.select`). Fed by `resident`;
the schedule of FC2 tells of itself (`fc2_schedule`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import torch

from h3runtime.backends.fused.base import GATED, MODULATED, Producers
from h3runtime.backends.fused.select import SWITCHES
from h3runtime.backends.linear.adapted import AdaptedLinear
from h3runtime.backends.linear.base import BackendLinear, LinearBackend
from h3runtime.backends.linear.facts import linear_facts
from h3runtime.backends.linear.nvfp4_base import DEFINITION, SCALE_SETTING, Nvfp4LinearBase, packings_of
from h3runtime.backends.linear.nvfp4_packing import Packings, why_no_packer
from h3runtime.backends.linear.switching import switched
from h3runtime.denoiser.blocks import Block
from h3runtime.denoiser.dit import Dit
from h3runtime.settings import variable

READERS: Final = {MODULATED: ("attn.qkv_proj", "mlp.fc1"), GATED: ("mlp.fc2",)}
"""By what a producer makes, the linears of a block that read it."""


def told_packer(linear: LinearBackend[Any], device: torch.device) -> str:
    """Beside why `linear` was chosen: who packs BF16 for it on `device`; "" of one that packs nothing."""
    if not isinstance(linear, Nvfp4LinearBase):
        return ""
    is_there = why_no_packer(linear.scale_backend, linear_facts(device)) is None
    return f"packs by {linear.scale_backend if is_there else DEFINITION}"


def idle(networks: Sequence[Dit], producers: Producers, scale_backend: str) -> tuple[str, ...]:
    """Of every switch that is on and has nothing to do with what multiplies the loaded layers now: its name, and why.
    scale_backend: `H3_NVFP4_SCALE_BACKEND`; the default one is no wish."""
    found = [
        f"{variable(setting)} is on and has nothing to do: {why}"
        for made, setting in SWITCHES.items()
        if made in producers.packs and (why := _why_nothing_handed(networks, producers, made)) is not None
    ]
    why = _why_nothing_packed(layer for network in networks for _, layer in switched(network))
    if scale_backend != "kitchen" and why is not None:
        found.append(f"{variable(SCALE_SETTING)}={scale_backend} has nothing to do: {why}")
    return tuple(found)


def _why_nothing_handed(networks: Sequence[Dit], producers: Producers, made: str) -> str | None:
    blocks = [cast("Block", block) for network in networks for block in network.blocks]
    if any(place in READERS[made] for block in blocks for place in block.packed_for(producers)):
        return None
    layers = [block.get_submodule(place) for block in blocks for place in READERS[made]]
    own = [layer.base if isinstance(layer, AdaptedLinear) else layer for layer in layers]
    why = _why_nothing_packed(layer for layer in own if isinstance(layer, BackendLinear))
    return why or "what these layers read is read by others too, is scaled by each first, or comes in chunks of rows"


def _why_nothing_packed(layers: Iterator[BackendLinear]) -> str | None:
    """Why none of them multiplies NVFP4; None where one does."""
    reasons: Counter[str] = Counter()
    for layer in layers:
        if not isinstance(layer.backend, Nvfp4LinearBase):
            reasons[f"the linear backend is {layer.backend.name}, which packs nothing"] += 1
        elif (why := layer.backend.why_unfit(layer.resident)) is not None:
            reasons[f"no layer that could read it multiplies NVFP4: of most, {why}"] += 1
        else:
            return None
    return reasons.most_common(1)[0][0] if reasons else "no layer follows the choice of a linear backend"


def looked(network: Dit) -> list[tuple[Packings, Packings]]:
    """What the backends of a run have counted so far, and a copy of it."""
    return [(count, count.look()) for count in packings_of(network)]


def packed_since(before: Sequence[tuple[Packings, Packings]]) -> dict[str, Any]:
    """For `diagnostics`, beside a run's linears: {activations: {packed: {who: count}, came_packed}}; nothing where no
    layer packs."""
    if not before:
        return {}
    by, came = Counter[str](), 0
    for count, then in before:
        since = count.since(then)
        by, came = by + since.by, came + since.came
    return {"activations": {"packed": dict(by), "came_packed": came}}


def told_producers(network: Dit) -> dict[str, Any]:
    """For `diagnostics`: {family, packed}: by linear, of how many blocks the family hands it NVFP4."""
    blocks = (cast("Block", block) for block in network.blocks)
    counted = Counter(place for block in blocks for place in block.packed_for(network.producers))
    return {"family": network.producers.name, "packed": dict(counted)}

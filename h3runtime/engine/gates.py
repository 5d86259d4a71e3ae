"""Why the loaded transformers have nothing for attention that reads `to_gate_compress`, or that they have.

Only checkpoints trained for video sparse attention carry it, and it is loaded only for a server whose attention is
`vsa` (`components`). Fed with networks, on the meta device or filled; read by `select`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from h3runtime.backends.attention.sparse.vsa import GATE, NAME
from h3runtime.denoiser.blocks import Block


def why_no_gates(networks: Iterable[Any]) -> str | None:
    """Why one of these `Dit`s has none, or None if all blocks of all have it."""
    blocks: list[Block] = [block for network in networks for block in network.blocks]
    attentions = [block.attn for block in blocks]
    if all(attention.gated for attention in attentions):
        return None
    if all(hasattr(attention, GATE) for attention in attentions):
        return f"attn.{GATE} is left in the file by a server that doesn't start with H3_ATTENTION={NAME}"
    return f"the checkpoint has no attn.{GATE}, so it wasn't trained for video sparse attention"

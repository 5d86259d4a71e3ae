"""`sla_topk_*`: the pictures' cubes keep the share of cubes whose mean keys score highest, without training.

One name for each share, since a request chooses by name: `sla_topk_75`, `_50`, `_25` and `_10` (10 % is what ComfyUI's
node keeps for checkpoints and adapters that were trained for it, dit-contract §9). The first step and the first block
are dense, as in LightX2V's configuration of a few-step model (`dense_steps` 1, `dense_layers` [0], dit-contract §9).
What is left out is gone: the linear branch that SLA trains beside it has no weights in any public H3 file.
"""

from __future__ import annotations

from typing import Final

from h3runtime.backends.attention.sparse.backend import BlockSparseAttention

PERCENTS: Final = (75, 50, 25, 10)


class SlaTopkAttention(BlockSparseAttention):
    dense_steps = 1
    dense_blocks = 1


def name_of(percent: int) -> str:
    return f"sla_topk_{percent}"

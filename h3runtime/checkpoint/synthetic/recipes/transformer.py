"""Values of a made-up transformer.

Fed with a seed and a depth by `made_files`.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from h3runtime.checkpoint.synthetic.random_values import uniform
from h3runtime.checkpoint.synthetic.recipes.recipe import NORM, Recipe, Spread

VIDEO_SHRINK, AUDIO_SHRINK = 0.9, 0.9
"""How much of its input a head returns as velocity: the flow then shrinks noise towards what the blocks add."""
GATE, SHIFT, SCALE = Spread(std=0.2, mean=0.7), Spread(std=0.05), Spread(std=0.2)
FINAL_CHUNKS = (SHIFT, SCALE)
"""Modulation about which timesteps vary, in chunk order (dit-contract §4.2, §4.6)."""
TEXT_ROW, TEXT_LOUDNESS = 1, 3.0
"""Text rows' values are made larger: few among many video rows, they'd otherwise hardly be heard."""
QKV_ROWS = (1.0, 0.8, 0.55)
"""Queries' rows are larger than keys' and those than values', as in trained weights: the order of rows can be told by
it. Queries and keys are normalised afterwards."""
ATTENTION = 4.0
"""Gain of attention as a whole: averaging over many rows makes small what it brings."""
DEPTH = 3
"""Blocks that the gates are meant for; among more, each adds less, so that the sum stays the same."""


def transformer(seed: int = 0, layers: int = DEPTH) -> Recipe:
    """The DiT, pruned or full AdaLN, of that many blocks."""
    gate = GATE.scaled(math.sqrt(DEPTH / layers))
    return Recipe(
        seed,
        rules=(
            ("*.bias", Spread(std=0.02)),
            ("*norm*", NORM),
            ("*.attn.qkv_proj.weight", Spread(gain=1.0, rows=QKV_ROWS)),
            ("blocks.*.attn.out_proj.weight", Spread(gain=ATTENTION / QKV_ROWS[2])),
            ("token_refiner.*.attn.out_proj.weight", Spread(gain=1.0 / QKV_ROWS[2])),
            ("*.adaln_proj.linear.weight", Spread(gain=0.3)),
            ("*_out.weight", Spread(gain=0.5)),
            ("*.weight", Spread(gain=1.0)),
        ),
        makers=(
            ("rope.inv_freq", _inverse_frequencies),
            ("adaln_t_table", _chebyshev_table),
            ("blocks.*.adaln_proj.linear.bias", partial(_block_modulation, gate)),
            ("final_layer.adaln_proj.linear.bias", _final_modulation),
            ("final_layer.video_out.weight", _video_head),
            ("final_layer.audio_out.weight", _audio_head),
        ),
    )


def _inverse_frequencies(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """1 / 10000^(i/n) with the power rounded to fp32 first, as the published bits are (dit-contract §1.2)."""
    return 1.0 / torch.tensor([10_000.0 ** (i / shape[0]) for i in range(shape[0])], dtype=torch.float32)


def _chebyshev_table(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """Column k is the Chebyshev polynomial of degree k + 1 over t in [0, 1]: smooth, bounded by 1, all different."""
    grid, rank = shape
    t = 2.0 * torch.arange(grid, dtype=torch.float64) / (grid - 1) - 1.0
    columns = [torch.ones_like(t), t]
    while len(columns) <= rank:
        columns.append(2.0 * t * columns[-1] - columns[-2])
    return torch.stack(columns[1 : rank + 1], dim=1).float()


def _block_modulation(gate: Spread, recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """[3 modalities, 6 chunks, hidden]; the text's first scale is raised by TEXT_LOUDNESS."""
    spreads = (SHIFT, SCALE, gate, SHIFT, SCALE, gate)
    chunks = _chunks(recipe, name, 3, spreads, shape[0] // (3 * len(spreads)))
    chunks[TEXT_ROW, 1] += TEXT_LOUDNESS
    return chunks.reshape(shape)


def _final_modulation(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return _chunks(recipe, name, 1, FINAL_CHUNKS, shape[0] // len(FINAL_CHUNKS)).reshape(shape)


def _chunks(recipe: Recipe, name: str, rows: int, chunks: tuple[Spread, ...], width: int) -> torch.Tensor:
    made = [uniform(f"{name}#{i}", (rows, width), recipe.seed, c.std, c.mean) for i, c in enumerate(chunks)]
    return torch.stack(made, dim=1)


def _video_head(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return _head(recipe, name, shape, "video_patch_proj.weight", VIDEO_SHRINK)


def _audio_head(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return _head(recipe, name, shape, "audio_patch_proj.weight", AUDIO_SHRINK)


def _head(recipe: Recipe, name: str, shape: tuple[int, ...], projection: str, shrink: float) -> torch.Tensor:
    """Random, minus `shrink` times the projection undone: its columns are nearly orthogonal, so its transpose does it.

    The sign is the network's own: ComfyUI turns it round (dit-contract §4.6).
    """
    rows, hidden = shape
    undo = recipe.tensor(projection, (hidden, rows)).T * (rows / hidden)
    return recipe.random(name, shape) - shrink * undo

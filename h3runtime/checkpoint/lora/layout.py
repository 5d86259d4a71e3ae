"""Which of the public layouts an adapter is in, by its metadata, names and ranks (checkpoint-formats §6).

    fasth3            FastVideo's student: pairs and whole differences, under Diffusers' names
    pdd               a bank of output heads beside the pairs
    pruned_complete   replacements of a pruned transformer's AdaLN beside the pairs
    diffusers         q, k and v apart
    diffsynth         our names with PEFT's infix: q, k and v lie head by head
    kohya             flattened names
    comfyui_turbo     fused q, k, v of three times the others' rank, nothing but the blocks' linears
    resized           a rank of its own for every layer
    bare              our names without a prefix, AdaLN among them
    pruned            our names, the blocks' linears alone at one rank
    comfyui           any other under our names

Told by `inspect` and `/ready`, and by what the contracts of the published ones go. Nothing about how an adapter is
applied follows from it.
"""

from __future__ import annotations

import re
from typing import Final

from h3runtime.checkpoint.lora.scales import common_rank
from h3runtime.checkpoint.lora.stored import TABLE, StoredAdapter, StoredWhole

PDD_STEPS, PDD_BLOCK = "pdd_num_steps", "pdd_block_size"
FASTH3_KEY, FASTH3_NAMES = "finetuned_model", re.compile(r"fastvideo/.*fasth3", re.IGNORECASE)
HEADS: Final = ("final_layer.video_out", "final_layer.audio_out", "proj_out", "audio_proj_out")
BLOCK: Final = re.compile(
    r"(?P<list>(?:token_refiner\.(?:refiner_)?|transformer_)?blocks)\.(?P<number>\d+)\."
    r"(?P<leaf>attn\.(?:qkv_proj|out_proj|to_q|to_k|to_v|to_out\.0)|mlp\.fc[12]|ff\.net\.(?:0\.proj|2))"
)
LINEARS: Final = (4, 6)
"""Of a block: q, k and v fused or apart."""


def layout_of(stored: StoredAdapter) -> str:
    return _of_whole(stored) or _of_pairs(stored)


def is_fasth3(stored: StoredAdapter) -> bool:
    return FASTH3_NAMES.match(stored.metadata.get(FASTH3_KEY, "")) is not None


def is_pdd(stored: StoredAdapter) -> bool:
    return PDD_STEPS in stored.metadata or any(is_head(whole) for whole in stored.wholes)


def is_head(whole: StoredWhole) -> bool:
    """Output heads that replace the model's: a bank, if there are several."""
    return whole.kind == "replacement" and whole.layer in HEADS


def has_blocks_alone(stored: StoredAdapter) -> bool:
    """Every linear of every block and of nothing else, the same ones in each: the shape of a Turbo adapter."""
    blocks: dict[tuple[str, str], int] = {}
    for layer in stored.layers:
        found = BLOCK.fullmatch(layer)
        if found is None:
            return False
        key = found["list"], found["number"]
        blocks[key] = blocks.get(key, 0) + 1
    return not stored.wholes and len(set(blocks.values())) == 1 and next(iter(blocks.values())) in LINEARS


def is_fused(stored: StoredAdapter) -> bool:
    """Three adapters of q, k and v made one, of three times the rank that all others have."""
    rank = common_rank(stored)
    ranks = {pair.rank == (3 * rank if layer.endswith("qkv_proj") else rank) for layer, pair in stored.pairs.items()}
    return ranks == {True} and any(layer.endswith("qkv_proj") for layer in stored.pairs)


def _of_whole(stored: StoredAdapter) -> str | None:
    if is_fasth3(stored):
        return "fasth3"
    if is_pdd(stored):
        return "pdd"
    adaln = [w for w in stored.wholes if w.kind == "replacement" and (w.layer == TABLE or "adaln_proj" in w.layer)]
    return "pruned_complete" if adaln else None


def _of_pairs(stored: StoredAdapter) -> str:
    layers = stored.layers
    if any(".attn.to_" in layer or ".ff.net." in layer for layer in layers):
        return "diffusers"
    if stored.infixed:
        return "diffsynth"
    if any("blocks_" in layer or "_proj_" in layer for layer in layers):
        return "kohya"
    if is_fused(stored) and has_blocks_alone(stored):
        return "comfyui_turbo"
    if len({pair.rank for pair in stored.pairs.values()}) > 2:
        return "resized"
    if not stored.prefix and any("adaln_proj" in layer for layer in layers):
        return "bare"
    return "pruned" if has_blocks_alone(stored) else "comfyui"

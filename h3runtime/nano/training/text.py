"""The text encoder over many presentations at once, differentiable, on the parameters of the runtime's own module.

    ids [B, L] -> embeddings -> vision features in place of the pads -> language layers -> hidden [B, L, hidden]

All B presentations of a batch have the same layout: as many rows, and vision blocks of the same sizes at the same
rows. What the layout decides (angles, the places of the vision rows) is computed once per layout and kept on its
device, so that a step waits for no copy. Equal to `TextEncoder.encode`, which works in place on one sequence without
gradients; the residual stream is fp32 under autocast too. Ids are rows of the compact table, see `vocabulary`. Fed by
`text_batches`; its result goes to the batched DiT.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import cast

import torch
from torch.nn import functional as F

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.language_model import CausalAttention, LanguageLayer, LanguageModel, SwiGlu
from h3runtime.conditioning.mrope import Rotary, position_ids, rotary_angles, rotate
from h3runtime.conditioning.vision_tower import (
    Merger,
    PatchEmbed,
    VisionAttention,
    VisionBlock,
    VisionTower,
    axial_angles,
    table_corners,
)
from h3runtime.media.vision_size import FRAMES, MERGE, PATCH, Grid, features_of, smart_resize
from h3runtime.nano.training.text_batches import Blocks, TextBatch


@dataclass(frozen=True, slots=True, eq=False)
class GridTables:
    """Of one block: corners int64 [4, N] and weights fp32 [4, N] into the position table, and the tower's angles."""

    corners: torch.Tensor
    weights: torch.Tensor
    rotary: Rotary


@dataclass(frozen=True, slots=True, eq=False)
class LayoutTables:
    """rotary: the language layers' angles [L, D/2]. vision_rows: int64 [V]. grids: one entry per block."""

    rotary: Rotary
    vision_rows: torch.Tensor
    grids: tuple[GridTables, ...]


def encode_batch(encoder: TextEncoder, batch: TextBatch) -> torch.Tensor:
    """hidden fp32 [B, L, hidden] on the encoder's device, where the batch has to be too."""
    table = encoder.model.embed_tokens.weight
    tables = layout_tables(encoder.config, batch.rows, batch.blocks, table.device)
    embeds = F.embedding(batch.ids, table)
    if not batch.blocks:
        return _language(encoder.model, embeds, tables, ())
    seen = [_see(encoder.visual, p, grid) for p, grid in zip(batch.pixels, tables.grids, strict=True)]
    main, *deepstack = (torch.cat(features, dim=1) for features in zip(*seen, strict=True))
    embeds = embeds.index_copy(1, tables.vision_rows, main.to(embeds.dtype))
    return _language(encoder.model, embeds, tables, tuple(deepstack))


@lru_cache(maxsize=1024)
def layout_tables(config: TextEncoderConfig, rows: int, blocks: Blocks, device: torch.device) -> LayoutTables:
    """Made on the CPU, where every device gets the same bits. Usable in training wherever they were first asked for."""
    with torch.inference_mode(False):
        positions = position_ids(rows, blocks)
        cos, sin = rotary_angles(positions, config.head_dim, config.rope_theta, config.mrope_section)
        places = [torch.arange(start, start + features_of(grid)) for start, grid in blocks]
        vision_rows = torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)
        grids = tuple(_grid_tables(config, grid, device) for _, grid in blocks)
        return LayoutTables((cos.to(device), sin.to(device)), vision_rows.to(device), grids)


def _grid_tables(config: TextEncoderConfig, grid: Grid, device: torch.device) -> GridTables:
    corners, weights = (torch.stack(t).to(device) for t in table_corners(grid, isqrt(config.vision.positions)))
    return GridTables(corners, weights, axial_angles(grid, config.vision.hidden // config.vision.heads, device))


def _language(
    model: LanguageModel, hidden: torch.Tensor, tables: LayoutTables, deepstack: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    for index, module in enumerate(model.layers):
        layer = cast(LanguageLayer, module)
        hidden = hidden + _attend(layer.self_attn, layer.input_layernorm(hidden), tables.rotary)
        hidden = hidden + _swiglu(layer.mlp, layer.post_attention_layernorm(hidden))
        if index < len(deepstack):
            hidden = hidden.index_add(1, tables.vision_rows, deepstack[index].to(hidden.dtype))
    return hidden


def _attend(attn: CausalAttention, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """x [B, L, hidden] -> what causal attention adds. A key head serves a run of neighbouring query heads."""
    q, k, v = (p(x).unflatten(-1, (-1, attn.head_dim)) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
    q, k = rotate(attn.q_norm(q), rotary).to(v.dtype), rotate(attn.k_norm(k), rotary).to(v.dtype)
    sharing = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(sharing, dim=2) for t in (k, v))
    added: torch.Tensor = attn.o_proj(_attended(q, k, v, is_causal=True))
    return added


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    """q, k, v [B, L, H, D] -> [B, L, H*D]."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).flatten(2)


def _swiglu(mlp: SwiGlu, x: torch.Tensor) -> torch.Tensor:
    added: torch.Tensor = mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    return added


def _see(tower: VisionTower, pixels: torch.Tensor, tables: GridTables) -> tuple[torch.Tensor, ...]:
    """uint8 [B, 1|2, H, W, 3] -> main feature and one per tap, [B, N/4, out_hidden] each."""
    x = _embed(tower.patch_embed, patch_rows(pixels))
    x = x + (F.embedding(tables.corners, tower.pos_embed.weight) * tables.weights.unsqueeze(-1)).sum(0)
    features: list[torch.Tensor] = []
    for index, module in enumerate(tower.blocks):
        block = cast(VisionBlock, module)
        x = x + _attend_in_grid(block.attn, block.norm1(x), tables.rotary)
        x = x + block.mlp(block.norm2(x))
        if index in tower.config.taps:
            features.append(_merge(tower.deepstack_merger_list[len(features)], x))
    return _merge(tower.merger, x), *features


def patch_rows(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 [B, F, H, W, 3] -> fp32 [B, N, 3*F*16*16], rows in merge order, as `conditioning.vision_preprocess` has
    them but with a still picture's one frame not yet doubled."""
    batch, count, height, width, channels = pixels.shape
    frames = pixels.permute(0, 1, 4, 2, 3).flatten(0, 1).float() / 255
    size = smart_resize(height, width)
    if size != (height, width):
        frames = F.interpolate(frames, size=size, mode="bilinear", align_corners=False, antialias=False)
    squares_y, squares_x = (side // (PATCH * MERGE) for side in size)
    split = ((frames - 0.5) / 0.5).reshape(batch, count, channels, squares_y, MERGE, PATCH, squares_x, MERGE, PATCH)
    ordered = split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(batch, squares_y * squares_x * MERGE**2, channels * count * PATCH * PATCH)


def _embed(patch_embed: PatchEmbed, patches: torch.Tensor) -> torch.Tensor:
    """[B, N, 3*F*16*16] -> fp32 [B, N, hidden]. A still picture's frame meets both frames' weights: their sum."""
    weight = patch_embed.proj.weight
    if patches.shape[-1] * FRAMES == weight[0].numel():
        weight = weight.sum(2)
    return F.linear(patches, weight.flatten(1), patch_embed.proj.bias).float()


def _attend_in_grid(attn: VisionAttention, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """x [B, N, hidden] -> what full attention among the patches of a picture adds."""
    q, k, v = attn.qkv(x).unflatten(-1, (3, attn.heads, -1)).unbind(2)
    q, k = rotate(q, rotary).to(v.dtype), rotate(k, rotary).to(v.dtype)
    added: torch.Tensor = attn.proj(_attended(q, k, v, is_causal=False))
    return added


def _merge(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Patch rows [B, N, hidden] -> features [B, N/4, out_hidden]."""
    merger = cast(Merger, module)
    fours = (merger.norm(x) if merger.norm_first else x).unflatten(1, (-1, MERGE**2)).flatten(2)
    normed = fours if merger.norm_first else merger.norm(fours)
    out: torch.Tensor = merger.linear_fc2(F.gelu(merger.linear_fc1(normed)))
    return out

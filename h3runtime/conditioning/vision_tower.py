"""Qwen3-VL's vision tower: patch rows of one block -> main and deepstack features (conditioning contract §1.9).

    patches [N, 1536] -> patch_embed + position table -> pre-norm blocks -> merger -> [N/4, out_hidden]
                                  outputs of the tap blocks -> their own mergers -> [N/4, out_hidden] each

One call is one frame grid (a still picture, or a pair of frames as one), so attention never crosses blocks and memory
is that of the largest block: x, q, k and v of all its rows, and chunks of everything wider. N = gh*gw rows in merge
order throughout. Fed by `vision_preprocess`; read by `encoder`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.conditioning.config import VisionConfig
from h3runtime.conditioning.layers import FP32, LayerNorm, row_chunks, uninitialised_embedding
from h3runtime.conditioning.mrope import Rotary, rotate
from h3runtime.media.vision_size import FRAMES, MERGE, PATCH, Grid

ROPE_THETA = 10_000.0
"""Base of the tower's own 2-D rotary (conditioning contract §1.9)."""


class VisionTower(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = uninitialised_embedding(config.positions, config.hidden)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.merger = Merger(config, norm_first=True)
        self.deepstack_merger_list = nn.ModuleList(Merger(config, norm_first=False) for _ in config.taps)

    def forward(
        self, patches: torch.Tensor, grid: Grid, poll: Callable[[], None]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """patches fp32 [N, C*2*16*16] -> features [N/4, out_hidden], one such tensor per tap. `poll` runs per block."""
        x = self.patch_embed(patches)
        x += self._positions(grid, x.device)
        rotary = axial_angles(grid, self.config.hidden // self.config.heads, x.device)
        deepstack = []
        for index, block in enumerate(self.blocks):
            poll()
            x = block(x, rotary)
            if index in self.config.taps:
                merger = self.deepstack_merger_list[self.config.taps.index(index)]
                deepstack.append(merger(x))
        return self.merger(x), tuple(deepstack)

    def _positions(self, grid: Grid, device: torch.device) -> torch.Tensor:
        """The learned table mixed bilinearly, [N, hidden] in the table's STORED dtype.

        With a half-precision table every weight, product and partial sum is rounded to it, in the order floor/floor,
        floor/ceil, ceil/floor, ceil/ceil (conditioning contract §1.7).
        """
        corners, weights = table_corners(grid, isqrt(self.config.positions))
        mixed: torch.Tensor | None = None
        for corner, weight in zip(corners, weights, strict=True):
            entry = self.pos_embed(corner.to(device))
            term = entry * weight.to(entry.dtype).to(device).unsqueeze(-1)
            mixed = term if mixed is None else mixed + term
        assert mixed is not None
        return mixed


class PatchEmbed(nn.Module):
    """A convolution whose kernel is its stride: one matmul over flattened patches."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        kernel = (FRAMES, PATCH, PATCH)
        self.proj = nn.Conv3d(config.channels, config.hidden, kernel, stride=kernel)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        assert self.proj.bias is not None
        return F.linear(patches, self.proj.weight.flatten(1).to(patches.dtype), self.proj.bias.to(patches.dtype))


class VisionBlock(nn.Module):
    """x fp32 [N, hidden] is changed in place and returned."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = LayerNorm(config.hidden, config.eps)
        self.attn = VisionAttention(config)
        self.norm2 = LayerNorm(config.hidden, config.eps)
        self.mlp = VisionMlp(config)
        self.config = config

    def forward(self, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        kept = self.attn.room(x)
        for rows in row_chunks(len(x), qkv_row_bytes(self.config)):
            self.attn.keep(self.norm1(x[rows]), rotary, rows, kept)
        for rows in row_chunks(len(x), attention_row_bytes(self.config)):
            x[rows] += self.attn(rows, kept)
        del kept
        for rows in row_chunks(len(x), mlp_row_bytes(self.config)):
            x[rows] += self.mlp(self.norm2(x[rows]))
        return x


def patch_values(config: VisionConfig) -> int:
    """Numbers that a patch comes as."""
    return config.channels * FRAMES * PATCH * PATCH


def qkv_row_bytes(config: VisionConfig) -> int:
    """The normed row, its three thirds, and what q and k go through."""
    return FP32 * 7 * config.hidden


def attention_row_bytes(config: VisionConfig) -> int:
    """What attention gives, the same head by head, and its projection."""
    return FP32 * 3 * config.hidden


def mlp_row_bytes(config: VisionConfig) -> int:
    """The normed row, the middle before and after its GELU, the result."""
    return FP32 * 2 * (config.hidden + config.intermediate)


def merger_row_bytes(config: VisionConfig) -> int:
    """Of one feature: four patches normed, the middle before and after its GELU, the result."""
    return FP32 * (3 * config.merged + config.out_hidden)


class VisionAttention(nn.Module):
    """Full attention among the N patches of one grid. qkv: thirds q, k, v; a head is a slice of its third.

    q, k and v of all patches are kept, fp32 [3, N, heads, D], q and k rotated; then chunks of patches attend.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.proj = nn.Linear(config.hidden, config.hidden)

    def room(self, x: torch.Tensor) -> torch.Tensor:
        """Memory for q, k and v of all rows of x [N, hidden]."""
        return x.new_empty(3, len(x), self.heads, x.shape[-1] // self.heads)

    def keep(self, x: torch.Tensor, rotary: Rotary, rows: slice, kept: torch.Tensor) -> None:
        """Write q, k and v of `rows`, whose normed stream is x [R, hidden]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        turn = rotary[0][rows], rotary[1][rows]
        kept[0, rows], kept[1, rows], kept[2, rows] = rotate(q, turn), rotate(k, turn), v

    def forward(self, rows: slice, kept: torch.Tensor) -> torch.Tensor:
        """What attention adds at `rows`: [R, hidden]."""
        # Four axes: with three, PyTorch takes a path that holds all N x N scores.
        q, k, v = kept.transpose(1, 2).unsqueeze(1)  # [1, heads, N, D] each
        out = F.scaled_dot_product_attention(q[:, :, rows], k, v)
        attended: torch.Tensor = self.proj(out[0].transpose(0, 1).flatten(1))
        return attended


class VisionMlp(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden, config.intermediate)
        self.linear_fc2 = nn.Linear(config.intermediate, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))
        return out


class Merger(nn.Module):
    """Four patch rows -> one feature. The main merger norms each patch; a deepstack merger norms the four in a row."""

    def __init__(self, config: VisionConfig, *, norm_first: bool) -> None:
        super().__init__()
        self.config = config
        self.merged = config.merged
        self.norm = LayerNorm(config.hidden if norm_first else config.merged, config.eps)
        self.norm_first = norm_first
        self.linear_fc1 = nn.Linear(config.merged, config.merged)
        self.linear_fc2 = nn.Linear(config.merged, config.out_hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Patch rows [N, hidden] -> features [N/4, out_hidden]."""
        fours = x.view(-1, self.merged)
        features = x.new_empty(len(fours), self.config.out_hidden)
        for rows in row_chunks(len(fours), merger_row_bytes(self.config)):
            features[rows] = self._merge(fours[rows])
        return features

    def _merge(self, fours: torch.Tensor) -> torch.Tensor:
        size = self.config.hidden if self.norm_first else self.merged
        normed = self.norm(fours.view(-1, size)).view(-1, self.merged)
        out: torch.Tensor = self.linear_fc2(F.gelu(self.linear_fc1(normed)))
        return out


def in_merge_order(table: torch.Tensor) -> torch.Tensor:
    """[gh, gw] -> [gh*gw]: 2x2 squares row by row, row by row inside a square (conditioning contract §1.9)."""
    height, width = table.shape
    squares = table.reshape(height // MERGE, MERGE, width // MERGE, MERGE)
    return squares.permute(0, 2, 1, 3).reshape(-1)


def table_corners(grid: Grid, side: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """For each patch its four neighbours in the side x side table (row numbers) and their fp32 weights.

    Made on the CPU: `linspace` gives other last bits on other devices.
    """
    (top, bottom, y), (left, right, x) = (_between_rows(count, side) for count in grid)
    corners = [a[:, None] * side + b[None] for a in (top, bottom) for b in (left, right)]
    weights = [a[:, None] * b[None] for a in (1 - y, y) for b in (1 - x, x)]
    return tuple(map(in_merge_order, corners)), tuple(map(in_merge_order, weights))


def _between_rows(count: int, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`count` points spread over 0..side-1: the whole numbers below and above each, and the way between them."""
    points = torch.linspace(0, side - 1, count, dtype=torch.float32)
    below = points.long()
    return below, (below + 1).clamp(max=side - 1), points - below


def axial_angles(grid: Grid, head_dim: int, device: torch.device) -> Rotary:
    """cos, sin fp32 [N, head_dim/2]: a quarter of the head turns with a patch's row, the next with its column."""
    exponents = torch.arange(0, head_dim // 2, 2, dtype=torch.float32) / (head_dim // 2)
    frequencies = 1.0 / ROPE_THETA**exponents
    rows = in_merge_order(torch.arange(grid[0])[:, None].expand(grid))
    columns = in_merge_order(torch.arange(grid[1])[None].expand(grid))
    angles = torch.cat([axis.float()[:, None] * frequencies for axis in (rows, columns)], dim=-1)
    return angles.cos().to(device), angles.sin().to(device)

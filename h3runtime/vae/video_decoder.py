"""The decoder half of the video VAE: a bidirectional ViT from one tile of latents to pixels.

One tile of one piece: latents [B, C, t, h, w] (after `post_quant_conv`, which is `video_vae`'s) give RGB
[B, 3, 4t, 16h, 16w], ImageNet-normalised. Tiles and time are `tiling`'s and `chunks`'; parameter names are ComfyUI's
below `decoder.`.

Arithmetic (conditioning contract §4.1), n = t h w tokens with w fastest, H heads of D:

    tokens = x_embedder(latents), 4 register tokens, one token of zeros       [B, n + 5, width]
    block  : x += scale1 * attention(rms(x));  x += scale2 * feed_forward(rms(x))
    attention: to_qkv rows are per head: (H, 3, D); q, k RMS-normalised without weights, then rotated
    rotary : the first 3 D / 4 dims; (t, h, w) have m = D / 8 frequencies 100^(-j/m) each; pairs (i, i + 3m);
             a coordinate is 2 (i + 0.5) / n - 1 within the tile; suffix tokens sit at (0, 0, 0)
    out    : LayerNorm, proj_out, drop the suffix, (3, 4, 16, 16) per token

fp16 rounding points (§4.8): coordinates and frequencies are held in the model's dtype, their product with 2 pi is fp32,
cos and sin are rounded to the model's dtype; the residual sum rounds once (scale and add fused), everything else after
every operation. `x_embedder` reads a transposed view of the latents on purpose: PyTorch then adds the bias after
rounding, as in ComfyUI; a contiguous copy rounds once and differs in most values. On the CPU kernels of the recorded
fixtures (no oneDNN in fp16) the result is ComfyUI's bit for bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.linear.fp8 import reads_codes, unbiased
from h3runtime.backends.vit.base import Activation, VitSteps
from h3runtime.backends.vit.definition import DEFINITION
from h3runtime.quant.row_codes import RowCodes
from h3runtime.vae.video_config import PATCH, DecoderConfig

EPS = 1e-5
"""Of every norm in the decoder (§4.1)."""
ROPE_BASE = 100.0
"""§4.1."""


def coordinates(shape: tuple[int, int, int], suffix: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Tile-local (t, h, w) of every token, each in (-1, 1), then `suffix` rows of zeros: [n + suffix, 3] in `dtype`."""
    axes = [2 * ((torch.arange(n, dtype=dtype, device=device) + 0.5) / n) - 1 for n in shape]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)
    return F.pad(grid, (0, 0, 0, suffix))


def rotary_table(positions: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin [S, 1, 3m] in the dtype of `positions` [S, 3]; m = head_dim / 8 frequencies per axis."""
    count = head_dim // 8
    powers = torch.arange(count, dtype=torch.float32, device=positions.device) / count
    frequencies = (ROPE_BASE**-powers).to(positions.dtype).float()
    angles = (2 * math.pi * positions.float()).unsqueeze(-1) * frequencies
    angles = angles.flatten(1).unsqueeze(1)
    return angles.cos().to(positions.dtype), angles.sin().to(positions.dtype)


class Product(NamedTuple):
    """What a linear gave, [B, S, N], and its bias where that hasn't been added."""

    values: torch.Tensor
    owed: torch.Tensor | None


def product(linear: nn.Module, given: Activation, tokens: int) -> Product:
    """given [B, S, K], or its codes; tokens: S."""
    if isinstance(given, RowCodes):
        values, owed = unbiased(linear, given)
        return Product(values.view(-1, tokens, values.shape[1]), owed)
    return Product(linear(given), None)


class Attention(nn.Module):
    def __init__(self, width: int, inner: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.to_qkv = nn.Linear(width, 3 * inner)
        self.to_out = nn.Linear(inner, width)

    def forward(self, x: Activation, cos: torch.Tensor, sin: torch.Tensor, steps: VitSteps = DEFINITION) -> Product:
        made = product(self.to_qkv, x, cos.shape[0])
        qkv = made.values.view(*made.values.shape[:2], -1, 3, self.head_dim)
        attended = steps.attend(qkv, cos, sin, EPS, codes=_takes_codes(self.to_out, steps), owed=made.owed)
        return product(self.to_out, attended, cos.shape[0])


class FeedForward(nn.Module):
    """w2(silu(gate) * value), the first half of w1's rows is the gate."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, 2 * inner)
        self.w2 = nn.Linear(inner, width)

    def forward(self, x: Activation, tokens: int, steps: VitSteps = DEFINITION) -> Product:
        made = product(self.w1, x, tokens)
        return product(self.w2, steps.gated(made.values, codes=_takes_codes(self.w2, steps), owed=made.owed), tokens)


def _takes_codes(linear: nn.Module, steps: VitSteps) -> bool:
    return steps.gives_codes and reads_codes(linear)


class Residual(NamedTuple):
    """x + scale * (update + owed), before the two are added: the next norm does all in one pass."""

    x: torch.Tensor
    update: torch.Tensor
    scale: torch.Tensor
    owed: torch.Tensor | None

    def added(self) -> torch.Tensor:
        """In place of x."""
        update = self.update if self.owed is None else self.update + self.owed
        return self.x.addcmul_(self.scale, update)


class Block(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.width, eps=EPS)
        self.attn = Attention(config.width, config.inner, config.head_dim)
        self.scale1 = nn.Parameter(torch.empty(config.width))
        self.norm2 = nn.RMSNorm(config.width, eps=EPS)
        self.ff = FeedForward(config.width, config.feed_forward)
        self.scale2 = nn.Parameter(torch.empty(config.width))

    def forward(
        self, given: torch.Tensor | Residual, cos: torch.Tensor, sin: torch.Tensor, steps: VitSteps = DEFINITION
    ) -> Residual:
        codes = _takes_codes(self.attn.to_qkv, steps)
        if isinstance(given, Residual):
            x, update, scale, owed = given
            x, normed = steps.add_norm(x, update, scale, self.norm1.weight, EPS, codes=codes, owed=owed)
        else:
            x, normed = given, steps.norm(given, self.norm1.weight, EPS, codes=codes)
        update, owed = self.attn(normed, cos, sin, steps)
        codes = _takes_codes(self.ff.w1, steps)
        x, normed = steps.add_norm(x, update, self.scale1, self.norm2.weight, EPS, codes=codes, owed=owed)
        update, owed = self.ff(normed, cos.shape[0], steps)
        return Residual(x, update, self.scale2, owed)


class VideoDecoder(nn.Module):
    """Latents [B, C, t, h, w] -> ImageNet-normalised RGB [B, 3, 4t, 16h, 16w], in the dtype of the latents."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim = config.head_dim
        self.steps: VitSteps = DEFINITION
        self.x_embedder = nn.Linear(config.latent_channels, config.width)
        self.register_tokens = nn.Parameter(torch.empty(1, config.registers, config.width))
        # In every file, read by nobody: the class token that is appended is zeros (§8 row 29).
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.transformer_blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm_out = nn.LayerNorm(config.width, eps=EPS)
        self.proj_out = nn.Linear(config.width, 3 * math.prod(PATCH))

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        t, h, w = latents.shape[2:]
        x = self._with_suffix(self.x_embedder(latents.flatten(2).transpose(1, 2)))
        positions = coordinates((t, h, w), x.shape[1] - t * h * w, x.dtype, x.device)
        cos, sin = rotary_table(positions, self.head_dim)
        given: torch.Tensor | Residual = x
        for block in self.transformer_blocks:
            given = block(given, cos, sin, self.steps)
        x = given.added() if isinstance(given, Residual) else given
        del given
        patches = self.proj_out(self.norm_out(x))[:, : t * h * w]
        return unpatchify(patches, (t, h, w))

    def _with_suffix(self, tokens: torch.Tensor) -> torch.Tensor:
        registers = self.register_tokens.expand(tokens.shape[0], -1, -1)
        return torch.cat([tokens, registers, torch.zeros_like(registers[:, :1])], 1)


def unpatchify(patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
    """[B, t h w, 3 * 4 * 16 * 16] (channel slowest) -> [B, 3, 4t, 16h, 16w]."""
    x = patches.reshape(-1, *grid, 3, *PATCH).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)

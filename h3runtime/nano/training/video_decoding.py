"""The video VAE's decoder for training: latents to pixels, a batch at a time, products in a dtype of choice.

Reads the parameters of the runtime's own `VideoDecoder` and equals its forward in fp32 (a test says so); the residual
stream and the norms over it are fp32 in every case. It leaves out the runtime's search for NaN, a pass over every
attention, and keeps the rotary tables of the sizes it has seen. Shapes and arithmetic: `vae.video_decoder`.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from h3runtime.backends.vit.definition import rotate
from h3runtime.vae.video_decoder import (
    EPS,
    Attention,
    Block,
    FeedForward,
    coordinates,
    rotary_table,
    unpatchify,
)
from h3runtime.vae.video_vae import VideoVae


def _linear(layer: torch.nn.Linear, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


class TrainedDecoder:
    """`vae`'s decoder with `post_quant_conv` in front of it."""

    def __init__(self, vae: VideoVae, dtype: torch.dtype) -> None:
        assert vae.decoder is not None and vae.post_quant_conv is not None
        self.conv, self.decoder, self.dtype = vae.post_quant_conv, vae.decoder, dtype
        self._tables: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """Denormalised latents fp32 [B, C, t, h, w] -> ImageNet-normalised RGB [B, 3, 4t, 16h, 16w] in `dtype`."""
        grid = (z.shape[2], z.shape[3], z.shape[4])
        assert self.conv.bias is not None
        tokens = F.linear(z.flatten(2).transpose(1, 2), self.conv.weight.flatten(1), self.conv.bias)
        x = self.decoder._with_suffix(F.linear(tokens, self.decoder.x_embedder.weight, self.decoder.x_embedder.bias))
        cos, sin = self._table(grid, x)
        for block in self.decoder.transformer_blocks:
            assert isinstance(block, Block)
            x = torch.addcmul(x, block.scale1, self._attention(block.attn, block.norm1(x), cos, sin))
            x = torch.addcmul(x, block.scale2, self._feed_forward(block.ff, block.norm2(x)))
        normed = self.decoder.norm_out(x[:, : tokens.shape[1]])
        return unpatchify(_linear(self.decoder.proj_out, normed, self.dtype), grid)

    def _table(self, grid: tuple[int, int, int], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin [S, 1, 1, 3m]: for all heads, and for q and k at once."""
        if grid not in self._tables:
            suffix = x.shape[1] - grid[0] * grid[1] * grid[2]
            cos, sin = rotary_table(coordinates(grid, suffix, torch.float32, x.device), self.decoder.head_dim)
            self._tables[grid] = cos.unsqueeze(1).to(self.dtype), sin.unsqueeze(1).to(self.dtype)
        return self._tables[grid]

    def _attention(self, attn: Attention, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        qkv = torch.unflatten(_linear(attn.to_qkv, x, self.dtype), -1, (-1, 3, attn.head_dim))
        qk = rotate(F.rms_norm(qkv[..., :2, :], (attn.head_dim,), eps=EPS), cos, sin)
        q, k, v = qk[..., 0, :], qk[..., 1, :], qkv[..., 2, :]
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return _linear(attn.to_out, out.transpose(1, 2).flatten(2), self.dtype).float()

    def _feed_forward(self, ff: FeedForward, x: torch.Tensor) -> torch.Tensor:
        gate, value = _linear(ff.w1, x, self.dtype).chunk(2, -1)
        return _linear(ff.w2, F.silu(gate) * value, self.dtype).float()

"""The audio encoder: a mono waveform to the posterior mean (conditioning contract §5.2).

Does: strided convolutions with Snake, then the attention projection that narrows their wide output to C channels.
Does not: crop, pad, split stereo or normalise; `audio_vae` does, and is the only caller. fp32 only.

Shapes, B mono items (real sizes in brackets):

    AudioEncoder     [B, 1, hop * A] -> [B, latent_dim, A]    stem 1 -> 64; five stages 64 -> 2048 down by 2, 4, 4, 5, 5
    AudioProjection  [B, A, latent_dim] -> [B, A, C]          2048 -> 32: linear + causal attention, then a gated MLP

Module names are the keys of the ComfyUI file (§5.4), which is why containers are nested as they are.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.vae.audio_config import UNIT_DILATIONS, AudioEncoderConfig

SNAKE_EPS = 1e-9
"""Keeps Snake's division finite (conditioning contract §5.2, §5.3)."""
NORM_EPS = 1e-5
"""LayerNorm of the attention projection (conditioning contract §5.2)."""


class Snake(nn.Module):
    """x + sin(alpha x)^2 / (alpha + 1e-9) on [B, C, L]; alpha [1, C, 1] as stored (the decoder's is a logarithm).

    A product with the reciprocal, since the recorded runs round like that: 3e-7 away instead of 1.5e-5.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.alpha + SNAKE_EPS).reciprocal() * torch.sin(self.alpha * x).square()


class ResidualUnit(nn.Module):
    """x + narrow(snake(dilated(snake(x)))), length kept."""

    def __init__(self, channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        pad = (kernel - 1) * dilation // 2
        self.block = nn.Sequential(
            Snake(channels),
            nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=pad),
            Snake(channels),
            nn.Conv1d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.block(x)
        return out


class EncoderStage(nn.Module):
    """[B, width, L] -> [B, out_width, L / stride]: three residual units, then a convolution of kernel 2 * stride."""

    def __init__(self, width: int, out_width: int, kernel: int, stride: int) -> None:
        super().__init__()
        units = [ResidualUnit(width, kernel, dilation) for dilation in UNIT_DILATIONS]
        down = nn.Conv1d(width, out_width, 2 * stride, stride=stride, padding=(stride + 1) // 2)
        self.block = nn.Sequential(*units, Snake(width), down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x)
        return out


class AudioEncoder(nn.Module):
    """[B, 1, hop * A] -> [B, latent_dim, A]."""

    def __init__(self, config: AudioEncoderConfig) -> None:
        super().__init__()
        widths = config.widths
        stages = [
            EncoderStage(width, out_width, kernel, stride)
            for width, out_width, kernel, stride in zip(
                widths[:-1], widths[1:], config.unit_kernels, config.strides, strict=True
            )
        ]
        self.block = nn.Sequential(
            nn.Conv1d(1, widths[0], config.stem_kernel, padding=config.stem_kernel // 2),
            *stages,
            Snake(widths[-1]),
            nn.Conv1d(widths[-1], config.latent_dim, config.out_kernel, padding=config.out_kernel // 2),
        )

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(waveform)
        return out


class CausalAttention(nn.Module):
    """[B, A, latent_dim] -> [B, A, C]: heads are averaged, not joined, and a head's features are pooled down to C.

    Only q and v have a bias of their own; the key's is a stored buffer of zeros.
    """

    zero_k_bias: torch.Tensor

    def __init__(self, width: int, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.channels = channels
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.empty(width))
        self.v_bias = nn.Parameter(torch.empty(width))
        self.register_buffer("zero_k_bias", torch.empty(width))
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = torch.cat((self.q_bias, self.zero_k_bias, self.v_bias))
        qkv = (self.qkv(x) + bias).unflatten(-1, (3, self.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        per_head = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.proj(F.adaptive_avg_pool1d(per_head.mean(dim=1), self.channels))
        return out


class GatedMlp(nn.Module):
    """w2(gelu(w0 x) * w1 x) on the normed input, tanh form of GELU; [B, A, C] -> [B, A, C]."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.w0 = nn.Linear(channels, hidden)
        self.w1 = nn.Linear(channels, hidden)
        self.w2 = nn.Linear(hidden, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        out: torch.Tensor = self.w2(F.gelu(self.w0(normed), approximate="tanh") * self.w1(normed))
        return out


class AudioProjection(nn.Module):
    """[B, A, latent_dim] -> [B, A, C]. The MLP norms its input a second time; the file has both norms."""

    def __init__(self, config: AudioEncoderConfig, channels: int) -> None:
        super().__init__()
        width = config.latent_dim
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPS)
        self.attn = CausalAttention(width, channels, config.heads)
        self.norm3 = nn.LayerNorm(width, eps=NORM_EPS)
        self.proj = nn.Linear(width, channels)
        self.norm2 = nn.LayerNorm(channels, eps=NORM_EPS)
        self.mlp = GatedMlp(channels, config.mlp_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.proj(self.norm3(x)) + self.attn(self.norm1(x))
        out: torch.Tensor = y + self.mlp(self.norm2(y))
        return out

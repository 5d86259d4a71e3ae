"""The audio decoder: latents to a mono waveform, a BigVGAN (conditioning contract §5.3).

Does: transposed convolutions, each followed by the mean of parallel blocks with anti-aliased SnakeBeta.
Does not: split stereo, denormalise or scale the sound; `audio_vae` does the first two and is the only caller.
fp32 only: in bf16 the sound comes out some 20 dB too quiet (§5.1).

Shapes, B mono items (real sizes in brackets): [B, latent_dim, A] -> conv_pre [B, 1024, A] -> seven stages, each half as
wide and 5, 5, 2, 2, 2, 2, 2 times as long -> [B, 8, 800 A] -> conv_post [B, 1, 800 A], clamped to [-1, 1].

Memory: no stage holds more than 6400 A floats per item (stages 1 to 6 alike), twice that inside an activation.

Module names are the keys of the ComfyUI file (§5.4), which is why containers are nested as they are.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from h3runtime.vae.audio_banded import anti_aliased
from h3runtime.vae.audio_config import AudioDecoderConfig
from h3runtime.vae.audio_encoder import SNAKE_EPS
from h3runtime.vae.audio_filters import DownsampleByTwo, UpsampleByTwo


class SnakeBeta(nn.Module):
    """x + sin(a x)^2 / (b + 1e-9) on [B, C, L]; alpha = ln a and beta = ln b are stored, both [C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequency, strength = self.factors()
        return x + strength * torch.sin(frequency * x).square()

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """a and 1 / (b + 1e-9), both [C, 1]."""
        return self.alpha.exp()[:, None], (self.beta.exp()[:, None] + SNAKE_EPS).reciprocal()


class AntiAliased(nn.Module):
    """SnakeBeta at twice the rate, so that the harmonics it makes don't fold back; [B, C, L] -> [B, C, L].

    On the CPU, where nothing is trained, by the products of `audio_banded`.
    """

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.upsample = UpsampleByTwo(taps)
        self.act = SnakeBeta(channels)
        self.downsample = DownsampleByTwo(taps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and not torch.is_grad_enabled():
            return anti_aliased(x, self.upsample.filter, self.downsample.lowpass.filter, *self.act.factors())
        return self.filtered(x)

    def filtered(self, x: torch.Tensor) -> torch.Tensor:
        """By convolutions, which define the result."""
        out: torch.Tensor = self.downsample(self.act(self.upsample(x)))
        return out


class ResidualBlock(nn.Module):
    """One kernel size: for each dilation x + plain(act(dilated(act(x)))). Activations 2i and 2i + 1 belong to i."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], taps: int) -> None:
        super().__init__()
        reach = (kernel - 1) // 2
        self.convs1 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=dilation * reach) for dilation in dilations
        )
        self.convs2 = nn.ModuleList(nn.Conv1d(channels, channels, kernel, padding=reach) for _ in dilations)
        self.activations = nn.ModuleList(AntiAliased(channels, taps) for _ in range(2 * len(dilations)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, (dilated, plain) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            inner = dilated(self.activations[2 * index](x))
            x = x + plain(self.activations[2 * index + 1](inner))
        return x


class Widening(nn.ConvTranspose1d):
    """[B, C, L] -> [B, C', stride L]. On the CPU, where nothing is trained, by a matrix product whose rows are added
    where they overlap: oneDNN writes a kernel for each length first, 60 ms of them for a sound of 1.6 s, and is then
    1.5 ms faster (LOG.md)."""

    def forward(self, x: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        if x.device.type != "cpu" or torch.is_grad_enabled() or output_size is not None:
            return super().forward(x, output_size)
        wide, weight = x.unsqueeze(2), self.weight.unsqueeze(2)
        (kernel,), (stride,), padding = self.kernel_size, self.stride, int(self.padding[0])
        made: torch.Tensor = torch.ops.aten.slow_conv_transpose2d(
            wide, weight, [1, kernel], self.bias, [1, stride], [0, padding]
        )
        return made.squeeze(2)


class AudioDecoder(nn.Module):
    """[B, latent_dim, A] -> [B, 1, hop * A] in [-1, 1]."""

    def __init__(self, config: AudioDecoderConfig) -> None:
        super().__init__()
        self.blocks_per_stage = len(config.block_kernels)
        self.conv_pre = nn.Conv1d(
            config.latent_dim, config.widths[0], config.pre_kernel, padding=config.pre_kernel // 2
        )
        self.ups = nn.ModuleList(
            nn.ModuleList([Widening(width, out_width, kernel, stride, padding=(kernel - stride) // 2)])
            for (width, out_width), kernel, stride in zip(
                pairwise(config.widths), config.up_kernels, config.up_strides, strict=True
            )
        )
        self.resblocks = nn.ModuleList(
            ResidualBlock(width, kernel, dilations, config.taps)
            for width in config.widths[1:]
            for kernel, dilations in zip(config.block_kernels, config.block_dilations, strict=True)
        )
        last = config.widths[-1]
        self.activation_post = AntiAliased(last, config.taps)
        self.conv_post = nn.Conv1d(last, 1, config.post_kernel, padding=config.post_kernel // 2, bias=False)

    def stage(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """One upsampling and the mean over its blocks: [B, widths[index], L] -> [B, widths[index + 1], stride * L]."""
        up = self.ups.get_submodule(f"{index}.0")(x)
        first = index * self.blocks_per_stage
        total: torch.Tensor = self.resblocks[first](up)
        for block in range(first + 1, first + self.blocks_per_stage):
            total = total + self.resblocks[block](up)
        return total / self.blocks_per_stage

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(latent)
        for index in range(len(self.ups)):
            x = self.stage(index, x)
        out: torch.Tensor = self.conv_post(self.activation_post(x))
        return out.clamp(-1, 1)

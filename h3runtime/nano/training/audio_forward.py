"""The audio decoder's forward for training: the runtime's modules and parameters, other arithmetic for the resampling.

    latents [B, C, A], not normalised -> samples [B, 1, 800 A], not clamped

Two thirds of a decoder's time would go into depthwise filters of one channel each, which no convolution library does
well, least of all their gradients. The filters are constants, so resampling by two is a product with a banded matrix:
blocks of `BLOCK` samples with a margin on both sides times [window, outputs], one matrix product for all channels. The
matrices are read off the runtime's own resamplers, so the two can't disagree; a test compares the whole forward.

The encoder needs nothing of this kind: `AudioVae.posterior_mean` is batched and differentiable as it is.
Fed by and read by `audio_vae`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional as F

from h3runtime.vae.audio_decoder import AntiAliased, AudioDecoder, ResidualBlock
from h3runtime.vae.audio_filters import DownsampleByTwo, UpsampleByTwo
from h3runtime.vae.audio_vae import AudioVae

BLOCK: Final = 16
"""Samples at the lower rate that one row of the product makes or eats."""
MARGIN: Final = 4
"""Samples at the lower rate on each side of a block: a filter of 12 taps at the doubled rate sees 3 of them."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """up [BLOCK + 2 MARGIN, 2 BLOCK], down [2 BLOCK + 4 MARGIN, BLOCK], fp32 on the device of the activations."""

    up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, decoder: AudioDecoder) -> Resampling:
        """The matrices of a decoder whose filters are filled in and all alike, as they are in every file."""
        filters = [b for name, b in decoder.named_buffers() if name.endswith("filter")]
        assert all(torch.equal(f, filters[0]) for f in filters)
        assert filters[0].shape[-1] <= 12, filters[0].shape
        post = decoder.activation_post
        return cls(_up_matrix(post.upsample), _down_matrix(post.downsample))


@torch.no_grad()
def _up_matrix(upsample: UpsampleByTwo) -> torch.Tensor:
    impulses = torch.eye(BLOCK + 2 * MARGIN).to(upsample.filter).unsqueeze(1)
    out: torch.Tensor = upsample(impulses)
    return out[:, 0, 2 * MARGIN : 2 * (MARGIN + BLOCK)].contiguous()


@torch.no_grad()
def _down_matrix(downsample: DownsampleByTwo) -> torch.Tensor:
    impulses = torch.eye(2 * (BLOCK + 2 * MARGIN)).to(downsample.lowpass.filter).unsqueeze(1)
    out: torch.Tensor = downsample(impulses)
    return out[:, 0, MARGIN : MARGIN + BLOCK].contiguous()


def _in_blocks(x: torch.Tensor, matrix: torch.Tensor, block: int, margin: int) -> torch.Tensor:
    """[B, C, L] times the matrix, block by block -> [B, C, outputs of the blocks]; ends are repeated."""
    padded = F.pad(x, (margin, margin + -x.shape[-1] % block), mode="replicate")
    windows = padded.unfold(-1, block + 2 * margin, block)
    return (windows.reshape(-1, len(matrix)) @ matrix).view(*x.shape[:2], -1)


def anti_aliased(module: AntiAliased, x: torch.Tensor, by: Resampling) -> torch.Tensor:
    """`AntiAliased.forward`: [B, C, L] -> [B, C, L]."""
    length = x.shape[-1]
    wide = _in_blocks(x, by.up, BLOCK, MARGIN)[..., : 2 * length]
    return _in_blocks(module.act(wide), by.down, 2 * BLOCK, 2 * MARGIN)[..., :length]


def residual_block(module: ResidualBlock, x: torch.Tensor, by: Resampling) -> torch.Tensor:
    """`ResidualBlock.forward`: [B, C, L] -> [B, C, L]."""
    for index, (dilated, plain) in enumerate(zip(module.convs1, module.convs2, strict=True)):
        first, second = (module.activations.get_submodule(str(2 * index + i)) for i in (0, 1))
        assert isinstance(first, AntiAliased)
        assert isinstance(second, AntiAliased)
        x = x + plain(anti_aliased(second, dilated(anti_aliased(first, x, by)), by))
    return x


def decode_mean(vae: AudioVae, items: torch.Tensor, by: Resampling) -> torch.Tensor:
    """Latents [B, C, A], not normalised -> samples [B, 1, hop A], differentiable; not clamped, so that gradients live.

    Clamped to [-1, 1] it equals the runtime's `decoder(dec_in_proj(items))` within fp32 rounding.
    """
    decoder = vae.decoder
    x: torch.Tensor = decoder.conv_pre(vae.dec_in_proj(items))
    for index in range(len(decoder.ups)):
        x = _stage(decoder, index, x, by)
    out: torch.Tensor = decoder.conv_post(anti_aliased(decoder.activation_post, x, by))
    return out


def _stage(decoder: AudioDecoder, index: int, x: torch.Tensor, by: Resampling) -> torch.Tensor:
    up = decoder.ups.get_submodule(f"{index}.0")(x)
    count = decoder.blocks_per_stage
    outs = []
    for block in range(index * count, (index + 1) * count):
        module = decoder.resblocks[block]
        assert isinstance(module, ResidualBlock)
        outs.append(residual_block(module, up, by))
    return outs[0] if count == 1 else torch.stack(outs).mean(0)

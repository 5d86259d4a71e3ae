"""The video VAE's encoder for many clips at once, differentiable: pixels to means of latents.

Reads the parameters of the runtime's own `VideoVae` and equals its encoder in fp32 (a test says so). Clips of any
length: pieces of 17 frames and what remains, all in one pass (`causal_conv`). Computes in the dtype of the pixels,
the levels from `WIDE` on in fp32 at least.

A block whose last convolution is all zeros adds nothing to its input. `idle_blocks` finds such blocks, and the pass
leaves them out: at full resolution a block costs as much as all the rest, and the embedded model holds it at zero.

Shapes: pixels, normalised, [B, F, H, W, 3] -> means [B, C, T, H/16, W/16]. Fed by `video_vae`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from h3runtime.core import CHUNK_FRAMES
from h3runtime.nano.training.causal_conv import Pieces, conv_frames, halved, norm_silu
from h3runtime.vae.chunks import FRAME_OVERLAP
from h3runtime.vae.video_encoder import CausalConv3d, FrameGroupNorm, Level, ResidualBlock, VideoEncoder
from h3runtime.vae.video_vae import VideoVae

WIDE = 4
"""From here on there are hardly any pixels left. In bf16 these levels alone cost the latents 1 % of their variance."""


def pieces_of(frames: int) -> Pieces:
    """What the encoder makes of a clip: pieces of 17, the last one of 5 frames; a picture is one of 1 (§4.6)."""
    if frames == 1:
        return (1,)
    return (CHUNK_FRAMES,) * (-(-frames // CHUNK_FRAMES) - 1) + (FRAME_OVERLAP,)


def idle_blocks(vae: VideoVae) -> frozenset[str]:
    """Names of the encoder's residual blocks that add exactly nothing. Waits for the device."""
    assert vae.encoder is not None
    blocks = ((name, b) for name, b in vae.encoder.named_modules() if isinstance(b, ResidualBlock))
    return frozenset(name for name, b in blocks if b.nin_shortcut is None and not _any(b.conv2))


def encode_means(vae: VideoVae, pixels: torch.Tensor, idle: Collection[str] = ()) -> torch.Tensor:
    """Means, not normalised, of clips whose frames fill their pieces; `idle`: blocks left out, by `idle_blocks`."""
    assert vae.encoder is not None and vae.quant_conv is not None
    pieces = pieces_of(pixels.shape[1])
    assert sum(pieces) == pixels.shape[1], (pieces, pixels.shape)
    moments = _encoder(vae.encoder, pixels, pieces, idle)
    channels = vae.config.latent_channels
    means = _point(vae.quant_conv, moments, channels)
    return means.permute(0, 4, 1, 2, 3)


def _encoder(encoder: VideoEncoder, x: torch.Tensor, pieces: Pieces, idle: Collection[str]) -> torch.Tensor:
    x = through_conv(encoder.conv_in, x, pieces)
    for index, level in enumerate(encoder.down):
        assert isinstance(level, Level)
        x = x.to(torch.promote_types(x.dtype, torch.float32)) if index >= WIDE else x
        x, pieces = _level(level, x, pieces, [f"down.{index}.block.{b}" in idle for b in range(len(level.block))])
    return through_conv(encoder.conv_out, through_norm(encoder.norm_out, x), pieces)


def _level(level: Level, x: torch.Tensor, pieces: Pieces, idle: list[bool]) -> tuple[torch.Tensor, Pieces]:
    for block, left_out in zip(level.block, idle, strict=True):
        assert isinstance(block, ResidualBlock)
        x = x if left_out else through_block(block, x, pieces)
    if level.downsample is None:
        return x, pieces
    conv = level.downsample.conv
    return through_conv(conv, x, pieces), halved(pieces, conv.stride[0])


def through_block(block: ResidualBlock, x: torch.Tensor, pieces: Pieces) -> torch.Tensor:
    h = through_conv(block.conv1, through_norm(block.norm1, x), pieces)
    h = through_conv(block.conv2, through_norm(block.norm2, h), pieces)
    return h + (x if block.nin_shortcut is None else _point(block.nin_shortcut, x))


def through_conv(conv: CausalConv3d, x: torch.Tensor, pieces: Pieces) -> torch.Tensor:
    assert conv.bias is not None
    stride = conv.stride
    return conv_frames(x, conv.weight, conv.bias, (stride[0], stride[1], stride[2]), pieces)


def through_norm(norm: FrameGroupNorm, x: torch.Tensor) -> torch.Tensor:
    return norm_silu(x, norm.weight, norm.bias, norm.num_groups, norm.eps)


def _point(conv: nn.Conv3d, x: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """A 1x1x1 convolution as a linear layer, or its first `rows` outputs."""
    assert conv.bias is not None
    weight, bias = conv.weight.flatten(1)[:rows], conv.bias[:rows]
    return nn.functional.linear(x, weight.to(x.dtype), bias.to(x.dtype))


def _any(conv: nn.Conv3d) -> bool:
    assert conv.bias is not None
    return bool(conv.weight.any() | conv.bias.any())

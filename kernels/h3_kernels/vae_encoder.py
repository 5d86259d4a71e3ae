"""The video encoder's steps between its convolutions on CUDA: group norm, SiLU and padding in three passes over memory.

Checks shapes and launches `vae_encoder_kernels`; decides nothing about where it is used (`backends.cnn` does). x is
[B, C, T, H, W] with channels last in memory (`torch.channels_last_3d`), fp16 or fp32.

    padded   FRONT frames of zeros, then every frame with its sides reflected: [B, C, T + FRONT, H', W'], read and
             written once; with a norm, x is read once more for its moments
    joined   shortcut + x
    owed     a bias [C] that a convolution hasn't added: x + owed, rounded, takes the place of x
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton

from h3_kernels.vae_encoder_kernels import join_kernel, moments_kernel, pad_kernel, parameters_kernel

TILE: Final = 4096
"""Elements that a program holds at once."""
STEPS: Final = 16
"""Tiles of a frame that one program adds up."""
LEAST_CHUNKS: Final = 128
"""Places for partial sums of a frame, in powers of two: what a frame of 256 x 256 pixels and 128 channels has."""
LAYOUT: Final = torch.channels_last_3d


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """weight, bias [C]; statistics over each group of C / groups channels of one frame."""

    weight: torch.Tensor
    bias: torch.Tensor
    groups: int
    eps: float


def padded(
    x: torch.Tensor, norm: GroupNorm | None, front: int, before: int, owed: torch.Tensor | None = None
) -> torch.Tensor:
    """silu(norm(x)), or x, between its paddings. before: pixels above and to the left, 0 or 1; below and to the right
    there is always one."""
    batch, channels, frames, height, width = x.shape
    assert x.is_contiguous(memory_format=LAYOUT) and before in (0, 1) and min(height, width) > 1
    tall, wide = height + before + 1, width + before + 1
    shape = batch, channels, frames + front, tall, wide
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=LAYOUT)
    parameters = x if norm is None else _parameters(x, norm, owed)
    block = triton.next_power_of_2(channels)
    pixels = max(1, TILE // block)
    pad_kernel[(batch * (frames + front), triton.cdiv(tall * wide, pixels))](
        x,
        x if owed is None else owed,
        parameters,
        out,
        frames,
        height,
        width,
        channels,
        FRONT=front,
        BEFORE=before,
        NORM=norm is not None,
        OWED=owed is not None,
        PIXELS=pixels,
        CHANNELS=block,
        INTERPRETED=bool(triton.knobs.runtime.interpret),
        num_warps=4,
    )
    return out


def joined(
    shortcut: torch.Tensor, x: torch.Tensor, shortcut_owed: torch.Tensor | None, owed: torch.Tensor | None
) -> torch.Tensor:
    assert shortcut.shape == x.shape and all(t.is_contiguous(memory_format=LAYOUT) for t in (shortcut, x))
    out = torch.empty_like(x, memory_format=LAYOUT)
    channels = x.shape[1]
    block, pixels = triton.next_power_of_2(channels), x.numel() // channels
    tile = max(1, TILE // block)
    join_kernel[(triton.cdiv(pixels, tile),)](
        shortcut,
        x if shortcut_owed is None else shortcut_owed,
        x,
        x if owed is None else owed,
        out,
        pixels,
        channels,
        SHORTCUT_OWED=shortcut_owed is not None,
        OWED=owed is not None,
        PIXELS=tile,
        CHANNELS=block,
        num_warps=4,
    )
    return out


def _parameters(x: torch.Tensor, norm: GroupNorm, owed: torch.Tensor | None) -> torch.Tensor:
    """fp32 [B*T, 2, C]: norm(x) = a*x + b."""
    batch, channels, frames, height, width = x.shape
    pixels, count = height * width, batch * frames
    assert norm.weight.shape == norm.bias.shape == (channels,) and channels % norm.groups == 0
    block = triton.next_power_of_2(channels)
    tile = max(1, TILE // block)
    per_program = tile * STEPS
    chunks = triton.cdiv(pixels, per_program)
    partial = torch.empty(count, chunks, 2, channels, dtype=torch.float32, device=x.device)
    moments_kernel[(count, chunks)](
        x,
        x if owed is None else owed,
        partial,
        pixels,
        channels,
        OWED=owed is not None,
        PER_PROGRAM=per_program,
        PIXELS=tile,
        CHANNELS=block,
        num_warps=4,
    )
    made = torch.empty(count, 2, channels, dtype=torch.float32, device=x.device)
    in_group = channels // norm.groups
    parameters_kernel[(count, norm.groups)](
        partial,
        norm.weight,
        norm.bias,
        made,
        chunks,
        pixels,
        channels,
        norm.eps,
        PER_PROGRAM=per_program,
        WIDTH=in_group,
        CHUNKS=max(triton.next_power_of_2(chunks), LEAST_CHUNKS),
        WIDTH_BLOCK=triton.next_power_of_2(in_group),
        INTERPRETED=bool(triton.knobs.runtime.interpret),
        num_warps=4,
    )
    return made

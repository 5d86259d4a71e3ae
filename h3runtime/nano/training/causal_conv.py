"""The encoder's two costly operations, frames side by side, with backward passes that a GPU is good at.

    conv_frames: 3x3x3 causal convolution as a 2-D one over frames, whose channels are three neighbours' in time
    norm_silu  : GroupNorm per frame, then SiLU

Both work on [B, T, H, W, C], contiguous (channels last), in any float dtype; statistics and sums are fp32 (fp64 of
fp64). T holds pieces one after another, each of which starts from nothing: (17, 5) are the two clips of 22 frames.

The runtime's own convolution pads by `F.pad(mode="reflect")`, whose backward adds with atomics, and its 3-D kernels are
slower than the 2-D ones that every vision model uses. Same arithmetic: conditioning contract §4.1. Read by
`video_encoding`; knows no module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

TAPS = 3
ALIGNMENT = 8
"""Channels of a convolution's input are filled up to a multiple of it: tensor cores take no others."""
STEEPEST = 30.0
"""In the backward pass a norm multiplies by no more than this, so by less than 1 / std where the std is below 1/30. A
window without any edge has none: its gradients, 1000 times too large per norm, would drown all others."""
Pieces = tuple[int, ...]
"""Frames of each piece of a clip."""


def halved(pieces: Pieces, stride: int) -> Pieces:
    """Frames that a convolution of this stride in time leaves of each piece: 17 -> 9 -> 5, 5 -> 3 -> 2, 1 -> 1."""
    return tuple(-(-length // stride) for length in pieces)


def conv_frames(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: tuple[int, int, int], pieces: Pieces
) -> torch.Tensor:
    """x [B, T, H, W, C] with weight [O, C, 3, 3, 3] of `CausalConv3d` -> [B, T', H', W', O] in the dtype of x.

    Three frames' channels go in, or three taps' results come out and are added in time: whichever moves fewer bytes.
    """
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    if max(pieces) > 1 and stride[0] == 1 and x.shape[-1] * stride[1] * stride[2] >= len(weight):
        alone = (1,) * x.shape[1]
        by_tap = _conv(x, weight.permute(2, 0, 1, 3, 4).flatten(0, 1), None, stride, alone)
        out: torch.Tensor = _AddedInTime.apply(by_tap, bias, pieces)  # type: ignore[no-untyped-call]
        return out
    taps = weight[:, :, -1:] if max(pieces) == 1 else weight
    return _conv(x, taps.transpose(1, 2).flatten(1, 2), bias, stride, pieces)


def _conv(
    x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None, stride: tuple[int, int, int], pieces: Pieces
) -> torch.Tensor:
    missing = -kernel.shape[1] % ALIGNMENT
    kernel = F.pad(kernel, (0, 0, 0, 0, 0, missing)) if missing else kernel
    out: torch.Tensor = _Convolution.apply(x, kernel, bias, stride, pieces)  # type: ignore[no-untyped-call]
    return out


def norm_silu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """silu(group_norm(x)) of [B, T, H, W, C], statistics of one frame at a time."""
    out: torch.Tensor = _NormSilu.apply(x, weight, bias, groups, eps)  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        kernel: torch.Tensor,
        bias: torch.Tensor | None,
        stride: tuple[int, int, int],
        pieces: Pieces,
    ) -> torch.Tensor:
        padded = _gathered(x, kernel.shape[1], stride, pieces)
        ctx.save_for_backward(padded, kernel)
        ctx.taken = x.shape, stride, pieces, bias is not None
        out = F.conv2d(_planes(padded), kernel, bias, stride[1:])
        return out.permute(0, 2, 3, 1).contiguous().view(x.shape[0], -1, *out.shape[2:], len(kernel))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        padded, kernel = ctx.saved_tensors
        shape, stride, pieces, biased = ctx.taken
        wants = [ctx.needs_input_grad[0], True, biased]
        grad_padded, grad_kernel, grad_bias = torch.ops.aten.convolution_backward(
            _planes(grads[0].contiguous()), _planes(padded), kernel, [len(kernel)] if biased else None,
            list(stride[1:]), [0, 0], [1, 1], False, [0, 0], 1, wants,
        )  # fmt: skip
        grad_x = None
        if wants[0]:
            grad_padded = grad_padded.permute(0, 2, 3, 1).contiguous().view(padded.shape)
            grad_x = _scattered(grad_padded, shape, stride, pieces)
        return grad_x, grad_kernel, grad_bias, None, None


class _AddedInTime(torch.autograd.Function):
    """[B, T, H, W, 3 O], what each tap makes of every frame, and a bias -> their sums [B, T, H, W, O]."""

    @staticmethod
    def forward(ctx: Any, by_tap: torch.Tensor, bias: torch.Tensor, pieces: Pieces) -> torch.Tensor:
        ctx.pieces = pieces
        first, second, own = by_tap.chunk(TAPS, -1)
        out = own + bias
        for tap, source, target in _taps(pieces, 1):
            if tap < TAPS - 1:
                out[:, target].add_((first, second)[tap][:, source])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        [grad] = grads
        out = grad.new_zeros(*grad.shape[:-1], TAPS * grad.shape[-1])
        parts = out.chunk(TAPS, -1)
        for tap, source, target in _taps(ctx.pieces, 1):
            parts[tap][:, source] = grad[:, target]
        return out, grad.sum((0, 1, 2, 3)), None


def _planes(x: torch.Tensor) -> torch.Tensor:
    """[B, T, H, W, C] -> [B T, C, H, W], channels last; no copy."""
    return x.flatten(0, 1).permute(0, 3, 1, 2)


def _taps(pieces: Pieces, stride: int) -> Iterator[tuple[int, slice, slice]]:
    """(tap, frames of the input, frames of the output that see them): tap 2 is the frame itself, 1 and 0 are before."""
    if max(pieces) == 1:
        yield TAPS - 1, slice(0, len(pieces)), slice(0, len(pieces))
        return
    start = begin = 0
    for length in pieces:
        count = -(-length // stride)
        for tap in reversed(range(TAPS)):
            first = -(-(TAPS - 1 - tap) // stride)
            source = start + stride * first - (TAPS - 1 - tap)
            if first < count:
                stop = source + stride * (count - first - 1) + 1
                yield tap, slice(source, stop, stride), slice(begin + first, begin + count)
        start, begin = start + length, begin + count


def _gathered(x: torch.Tensor, width: int, stride: tuple[int, int, int], pieces: Pieces) -> torch.Tensor:
    """[B, T', H + edges, W + edges, width]: three frames' channels, reflected at the edges, zeros before the first."""
    batch, _, height, wide, channels = x.shape
    before = 1 if stride[1] == 1 else 0
    size = (batch, sum(halved(pieces, stride[0])), height + before + 1, wide + before + 1, width)
    out = x.new_empty(size) if max(pieces) == 1 and width == channels else x.new_zeros(size)
    inside = out[:, :, before : before + height, before : before + wide]
    for tap, source, target in _taps(pieces, stride[0]):
        inside[:, target, ..., _channels(tap, channels, pieces)] = x[:, source]
    for edge, mirrored in _edges(height, before):
        out[:, :, edge] = out[:, :, mirrored]
    for edge, mirrored in _edges(wide, before):
        out[:, :, :, edge] = out[:, :, :, mirrored]
    return out


def _scattered(grad: torch.Tensor, shape: Sequence[int], stride: tuple[int, int, int], pieces: Pieces) -> torch.Tensor:
    """The transpose of `_gathered`; folds the edges of `grad`, which nobody else holds, in place."""
    _, _, height, wide, channels = shape
    before = 1 if stride[1] == 1 else 0
    for edge, mirrored in _edges(wide, before):
        grad[:, :, :, mirrored].add_(grad[:, :, :, edge])
    for edge, mirrored in _edges(height, before):
        grad[:, :, mirrored].add_(grad[:, :, edge])
    inside = grad[:, :, before : before + height, before : before + wide]
    if max(pieces) == 1:
        return inside[..., :channels].contiguous()
    out = grad.new_zeros(shape)
    for tap, source, target in _taps(pieces, stride[0]):
        out[:, source].add_(inside[:, target, ..., _channels(tap, channels, pieces)])
    return out


def _channels(tap: int, channels: int, pieces: Pieces) -> slice:
    """Where a tap's frame is among the joined channels. Of pictures alone there is no other tap than the last."""
    first = channels * (0 if max(pieces) == 1 else tap)
    return slice(first, first + channels)


def _edges(length: int, before: int) -> list[tuple[int, int]]:
    """(padded index of an edge, of what it mirrors) along an axis of `length`."""
    last = length + before
    return [(0, 2), (last, last - 2)] if before else [(last, last - 2)]


class _NormSilu(torch.autograd.Function):
    """y = silu(a x + b), a = weight / std, b = bias - mean a; mean and std per frame and group: [B, T, 1, 1, G, 1]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
    ) -> torch.Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        grouped = torch.unflatten(x, -1, (groups, -1))
        axes = (2, 3, 5)
        count = x[0, 0].numel() // groups
        mean = grouped.mean(axes, keepdim=True, dtype=wide)
        square = torch.linalg.vector_norm(grouped, 2, axes, keepdim=True, dtype=wide).square() / count
        inverse = ((square - mean.square()).clamp_min(0) + eps).rsqrt()
        scale = inverse * torch.unflatten(weight, 0, (groups, -1))
        shift = torch.unflatten(bias, 0, (groups, -1)) - mean * scale
        pre = torch.addcmul(shift.flatten(-2), x, scale.flatten(-2)).to(x.dtype)
        ctx.save_for_backward(x, pre, mean, inverse, weight)
        return F.silu(pre)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, pre, mean, inverse, weight = ctx.saved_tensors
        groups, wide = mean.shape[-2], mean.dtype
        grad = torch.ops.aten.silu_backward(grads[0], pre)
        count = x[0, 0].numel() // groups
        total = torch.unflatten(grad.sum((2, 3), keepdim=True, dtype=wide), -1, (groups, -1))
        along = torch.unflatten((grad * x).sum((2, 3), keepdim=True, dtype=wide), -1, (groups, -1))
        along = inverse * (along - mean * total)
        by_group = torch.unflatten(weight, 0, (groups, -1))
        slope = inverse.clamp_max(STEEPEST)
        steady = (by_group * total).sum(-1, keepdim=True) / count
        tilt = slope * inverse * (by_group * along).sum(-1, keepdim=True) / count
        offset = (mean * tilt - slope * steady).expand_as(total).flatten(-2)
        grad_x = torch.addcmul(offset, grad, (slope * by_group).flatten(-2))
        grad_x = torch.addcmul(grad_x, x, -tilt.expand_as(total).flatten(-2)).to(x.dtype)
        return grad_x, along.flatten(-2).sum((0, 1, 2, 3)), total.flatten(-2).sum((0, 1, 2, 3)), None, None

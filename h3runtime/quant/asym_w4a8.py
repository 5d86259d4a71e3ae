"""4-bit codes decoded to an INT8 grid: the `asym_w4a8_int8` format (checkpoint-formats §2.5).

    grid[n, k] = clamp(round(level[code[n, k]] * relative_scale[n, k // g]), -127, 127)          an INT8 number
    w = (grid * channel_scale[n] + correction[k // g, n]) viewed [N, K/G, G] @ H_G

level is the file's `weight_codebook` [16], ascending, or without one code - 8. g is 16 and the rotation's G 256 unless
the marker says otherwise; the rotation is always there, whether or not the marker repeats `convrot`. codes int8, even
column in the LOW nibble. comfy-kitchen 0.2.40 stores a 6-bit variant under the same name, told by the width of a row:
K/2 bytes of low nibbles followed by K/4 bytes of the codes' top two bits (column c in byte c // 4, bit 2 * (c % 4)),
level = code - 32, no codebook and no correction; it is read here, not written. Fed by the linear backends.
"""

from __future__ import annotations

import torch

from h3runtime.quant import nibbles
from h3runtime.quant.rotation import LARGEST_GROUP, rotate
from h3runtime.quant.slices import row_slices
from h3runtime.quant.stored import AsymInt4Weight

DEFAULT_GROUP = 16
DEFAULT_ROTATION = LARGEST_GROUP
GRID_MAX = 127.0
SMALLEST_SCALE = 1e-8
REFINEMENTS = 2
"""Least-squares passes over the group scales, as many as comfy-kitchen makes."""
CODEBOOK = (
    *(-0.980602, -0.794529, -0.638165, -0.500986, -0.377321, -0.263187, -0.155210, -0.050720),
    *(0.052541, 0.156985, 0.265284, 0.379533, 0.502636, 0.638953, 0.794876, 0.980671),
)
"""comfy-kitchen 0.2.40's default levels: the best 16 for groups of a Gaussian divided by their largest."""


def packed_shape(shape: tuple[int, int], bits: int = 4) -> tuple[int, int]:
    """[N, K] -> shape of the codes, 4 or 6 bits each."""
    return shape[0], shape[1] * bits // 8


def relative_scale_shape(shape: tuple[int, int], group: int = DEFAULT_GROUP) -> tuple[int, int]:
    """[N, K] -> shape of `weight_s_rel`; transposed, of `weight_correction`."""
    return shape[0], shape[1] // group


def channel_scale_shape(shape: tuple[int, int]) -> tuple[int]:
    """[N, K] -> shape of `weight_s_channel`."""
    return (shape[0],)


def quantize(
    weight: torch.Tensor,
    convrot: int = DEFAULT_ROTATION,
    group: int = DEFAULT_GROUP,
    codebook: torch.Tensor | None = None,
    scale_dtype: torch.dtype = torch.float8_e4m3fn,
) -> AsymInt4Weight:
    """weight [N, K] float -> the codebook form without correction, rotated and rounded in FP32.

    From an FP32 weight it equals comfy-kitchen's eager `quantize_w4a8_int8_weight` bit for bit, given the same codebook
    (fp32 [16] ascending; the library fits its own where a layer's groups are heavy-tailed; None takes `CODEBOOK`).
    Raises ValueError for anything non-finite and for a K that `group` or the rotation's group doesn't divide.
    """
    rows, columns = weight.shape
    if columns % group:
        raise ValueError(f"groups of {group} columns don't divide {columns} columns")
    levels = torch.tensor(CODEBOOK) if codebook is None else codebook.float()
    levels = levels.to(weight.device)
    codes = torch.empty(packed_shape((rows, columns)), dtype=torch.int8, device=weight.device)
    relative = torch.empty(rows, columns // group, dtype=scale_dtype, device=weight.device)
    channel = torch.empty(rows, dtype=torch.float32, device=weight.device)
    for part in row_slices(rows, columns):
        blocks = rotate(weight[part].float(), convrot).reshape(-1, columns // group, group)
        scale, largest = _fit(blocks, levels)
        channel[part] = (largest / GRID_MAX).clamp(min=SMALLEST_SCALE)
        relative[part] = (scale / channel[part].unsqueeze(1)).to(scale_dtype)
        grid = (levels * relative[part].float().unsqueeze(-1)).round().clamp(-GRID_MAX, GRID_MAX)
        codes[part] = nibbles.pack(_nearest(blocks / channel[part].view(-1, 1, 1), grid).flatten(1))
    if not torch.isfinite(channel).all():
        raise ValueError("a non-finite weight can't be quantised")
    return AsymInt4Weight(codes, relative, channel, levels, convrot=convrot, group=group)


def _fit(blocks: torch.Tensor, levels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """blocks [N, K/g, g] -> scale of each block [N, K/g], and the largest level * scale of each row [N]."""
    scale = blocks.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST_SCALE)
    chosen = levels[_nearest(blocks / scale, levels)]
    for _ in range(REFINEMENTS):
        energy = (chosen * chosen).sum(-1, keepdim=True).clamp(min=SMALLEST_SCALE)
        scale = ((blocks * chosen).sum(-1, keepdim=True) / energy).clamp(min=SMALLEST_SCALE)
        chosen = levels[_nearest(blocks / scale, levels)]
    return scale.squeeze(-1), (chosen * scale).abs().amax(dim=(1, 2))


def _nearest(x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Index of the level nearest to x; levels ascending, [L] or [..., L] with x's leading shape. Ties go down."""
    above = torch.searchsorted(levels.contiguous(), x.contiguous())
    low, high = (above - 1).clamp(min=0), above.clamp(max=levels.shape[-1] - 1)
    table = levels if levels.dim() > 1 else levels.expand(*x.shape[:-1], -1)
    up = (x - table.gather(-1, high)).abs() < (x - table.gather(-1, low)).abs()
    return torch.where(up, high, low)


def dequantize(weight: AsymInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    return _unpack(weight, torch.float32, dtype)


def dequantize_fp32(weight: AsymInt4Weight) -> torch.Tensor:
    """fp32 [N, K]; comfy-kitchen's eager `dequantize_w4a8_int8_weight(output_dtype=float32)` bit for bit."""
    return _unpack(weight, torch.float32, torch.float32)


def dequantize_kitchen(weight: AsymInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] as comfy-kitchen's eager path rounds it, bit for bit: cast to `dtype` before the rotation, not after."""
    return _unpack(weight, dtype, dtype)


def _unpack(weight: AsymInt4Weight, rotation: torch.dtype, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(weight.shape, dtype=dtype, device=weight.codes.device)
    channel = weight.channel_scale.float().view(-1, 1, 1)
    for part in row_slices(*weight.shape):
        blocks = _blocks(weight, grid_rows(weight, part).float()).mul_(channel[part])
        if weight.correction is not None:
            blocks = blocks.add_(weight.correction[:, part].T.float().unsqueeze(-1))
        out[part] = rotate(blocks.flatten(1).to(rotation), weight.convrot)
    return out


def grid_rows(weight: AsymInt4Weight, rows: slice) -> torch.Tensor:
    """The INT8 grid that the codes of `rows` decode to, int8 [n, K], still rotated."""
    levels = _blocks(weight, _levels(weight, weight.codes[rows]))
    scaled = levels.mul_(_relative(weight)[rows].float().unsqueeze(-1))
    return scaled.round_().clamp_(-GRID_MAX, GRID_MAX).flatten(1).to(torch.int8)


def _blocks(weight: AsymInt4Weight, x: torch.Tensor) -> torch.Tensor:
    """[n, K] -> [n, K/g, g]."""
    return x.reshape(x.shape[0], -1, weight.group)


def _levels(weight: AsymInt4Weight, codes: torch.Tensor) -> torch.Tensor:
    """fp32 [n, K]: the level of each code, 4 bits or 6."""
    if weight.codebook is not None:
        return nibbles.lookup(codes, weight.codebook.float())
    columns = weight.shape[1]
    levels = nibbles.lookup(codes[:, : columns // 2], nibbles.offset_values(codes.device, torch.float32))
    if codes.shape[1] * 2 == columns:
        return levels
    shifts = torch.arange(0, 8, 2, device=codes.device)
    top = (codes[:, columns // 2 :].view(torch.uint8).unsqueeze(-1) >> shifts) & 3
    return levels.add_(top.flatten(1) * 16 - 24)


def _relative(weight: AsymInt4Weight) -> torch.Tensor:
    """The relative scales, which some files keep as raw E4M3 bytes."""
    scale = weight.relative_scale
    return scale.view(torch.float8_e4m3fn) if scale.dtype is torch.uint8 else scale

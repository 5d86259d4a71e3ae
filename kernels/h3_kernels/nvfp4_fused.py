"""Producers that end in NVFP4, by CUDA C++: norm and modulation, with the gated residual before them, and SwiGLU.

    norm_modulate_pack             [S, W]    -> Packed          bytes: 2*S*W read, 9/16*S*W written
    add_gated_norm_modulate_pack   the same, x in place         6*S*W and 9/16*S*W
    swiglu_pack                    [S, 2*F]  -> Packed          4*S*F read, 9/16*S*F written

That by a tensor scale which is given. None: it is found in the same call, in a first pass over the inputs; then norms
read another 2*S*W, and SwiGLU another 4*S*F. Codes, scales and x are those of the BF16 kernels of `producers` with
`nvfp4.tensor_scale` and `nvfp4.pack` after them, bit for bit: so the switches that choose these change no picture. What
the kernels don't take is made by those other kernels: rows of SwiGLU that aren't 16-byte aligned; norms wider than
16,384, or with rows that aren't a multiple of 16 values apart (there Triton adds squares in another order).

Checks shapes, makes outputs and launches `cuda/nvfp4_fused_*.cu`; nothing waits for the device, a CUDA graph may hold
every call. BF16 alone, as these feed a product in BF16. `backends` decides where they are used.
"""

from __future__ import annotations

from typing import Final

import torch

from h3_kernels import nvfp4, producers
from h3_kernels.cuda_library import launch
from h3_kernels.nvfp4 import BLOCK, Packed
from h3_kernels.producers import Modulation, Residual

SLOTS: Final = 256
"""Largest values that a first pass leaves (`kSlots` of `nvfp4_tiles.cuh`)."""
STRIP, MOST_STRIPS = 256, 8
"""Of a norm's row: columns that a warp takes at a time, and how often it may (`nvfp4_fused_norm.cu`)."""
ALIGNED: Final = 8
"""BF16 values in 16 bytes."""
TRITON_STRIDE: Final = 16
"""Values; Triton sees that a row is aligned by a stride in multiples of this."""


def norm_modulate_pack(
    x: torch.Tensor, weight: torch.Tensor, eps: float, by: Modulation, tensor_scale: torch.Tensor | None = None
) -> Packed:
    """x bf16 [S, W], W in multiples of 16; weight [W]; tensor_scale fp32 of one element, None: of the result.

    Raises TypeError for another dtype, ValueError for a shape or a device it doesn't take.
    """
    return _norm_pack(x, None, weight, eps, by, tensor_scale)


def add_gated_norm_modulate_pack(
    x: torch.Tensor,
    residual: Residual,
    weight: torch.Tensor,
    eps: float,
    by: Modulation,
    tensor_scale: torch.Tensor | None = None,
) -> Packed:
    """x += update*gate[index], in place; what `norm_modulate_pack` makes of it is returned."""
    return _norm_pack(x, residual, weight, eps, by, tensor_scale)


def swiglu_pack(x: torch.Tensor, tensor_scale: torch.Tensor | None = None) -> Packed:
    """x bf16 [S, 2*F], gate first -> silu(gate)*value, F in multiples of 16, both operations rounded; x stays as it is.

    Raises as above.
    """
    _check(x, x.shape[1] // 2 if x.dim() == 2 and x.shape[1] % 2 == 0 else 1)
    rows, width = x.shape[0], x.shape[1] // 2
    if not _aligned(x, ALIGNED):
        return _packed_apart(producers.swiglu_(x.clone()), tensor_scale)
    made = _room(rows, width, x.device, tensor_scale)
    launch(
        "h3_nvfp4_swiglu",
        x.device,
        x,
        x.stride(0),
        rows,
        width,
        int(tensor_scale is None),
        made.tensor_scale,
        _slots(x.device, tensor_scale),
        made.codes,
        made.block_scale,
    )
    return made


def _norm_pack(
    x: torch.Tensor,
    residual: Residual | None,
    weight: torch.Tensor,
    eps: float,
    by: Modulation,
    tensor_scale: torch.Tensor | None,
) -> Packed:
    _check(x, x.shape[1] if x.dim() == 2 else 1)
    rows, width = x.shape
    _check_beside(x, residual, weight, by)
    warps = producers._chunks(width, x.dtype)["num_warps"]
    beside = [weight, by.shift, by.scale, *([] if residual is None else [residual.update, residual.gate])]
    if not all(_aligned(one, TRITON_STRIDE) for one in (x, *beside)) or width > STRIP * MOST_STRIPS * warps:
        if residual is None:
            return _packed_apart(producers.norm_modulate(x, weight, eps, by), tensor_scale)
        return _packed_apart(producers.add_gated_norm_modulate(x, residual, weight, eps, by), tensor_scale)
    made = _room(rows, width, x.device, tensor_scale)
    dynamic = tensor_scale is None
    launch(
        "h3_nvfp4_norm_modulate",
        x.device,
        x,
        x.stride(0),
        rows,
        width,
        None if residual is None else residual.update,
        0 if residual is None else residual.update.stride(0),
        weight,
        by.shift,
        by.scale,
        None if residual is None else residual.gate,
        by.shift.stride(0),
        by.index.int().contiguous(),
        float(eps),
        warps,
        int(dynamic),
        made.tensor_scale,
        torch.empty(rows, dtype=torch.float32, device=x.device) if dynamic else None,
        _slots(x.device, tensor_scale),
        made.codes,
        made.block_scale,
    )
    return made


def _packed_apart(x: torch.Tensor, tensor_scale: torch.Tensor | None) -> Packed:
    return nvfp4.pack(x, nvfp4.tensor_scale(x) if tensor_scale is None else tensor_scale)


def _room(rows: int, width: int, device: torch.device, tensor_scale: torch.Tensor | None) -> Packed:
    """Nothing of it is cleared. A scale that is to be found is 0 where there are no rows."""
    if tensor_scale is None:
        made = torch.empty if rows and width else torch.zeros
        tensor_scale = made((), dtype=torch.float32, device=device)
    nvfp4.check_scale(tensor_scale, device)
    return nvfp4.empty_packed(rows, width, tensor_scale)


def _slots(device: torch.device, tensor_scale: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor_scale is not None else torch.empty(SLOTS, dtype=torch.float32, device=device)


def _check(x: torch.Tensor, width: int) -> None:
    """width: of the result."""
    if x.dtype != torch.bfloat16:
        raise TypeError(f"x is {x.dtype}; legal: torch.bfloat16")
    if x.dim() != 2 or width % BLOCK:
        raise ValueError(f"x is {list(x.shape)}; legal: two dims, of which a result in multiples of {BLOCK} is made")
    if x.device.type != "cuda":
        raise ValueError(f"x is on {x.device}; legal: cuda")


def _check_beside(x: torch.Tensor, residual: Residual | None, weight: torch.Tensor, by: Modulation) -> None:
    """That everything beside x has the shape, the strides, the dtype and the device that go with it."""
    rows, width = x.shape
    table = (by.shift.shape[0], width)
    wanted = {"weight": (weight, (width,)), "shift": (by.shift, table), "scale": (by.scale, table)}
    if residual is not None:
        wanted |= {"update": (residual.update, (rows, width)), "gate": (residual.gate, table)}
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape or tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; "
                f"legal beside this x: {x.dtype} {list(shape)} on {x.device}"
            )
    for name, (tensor, shape) in wanted.items():
        if shape == table and tensor.stride() != by.shift.stride():
            raise ValueError(f"{name} has strides {tensor.stride()}; legal: those of shift, {by.shift.stride()}")
    if by.index.shape != (rows,) or by.index.device != x.device:
        raise ValueError(f"index is {list(by.index.shape)} on {by.index.device}; legal: [{rows}] on {x.device}")


def _aligned(x: torch.Tensor, apart: int) -> bool:
    """Whether x begins at a multiple of 16 bytes, with unit stride in a row and rows a multiple of `apart` apart."""
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and (x.dim() < 2 or x.stride(0) % apart == 0)

"""NVFP4 activations made by CUDA C++: the tensor's scale, and codes with block scales in cuBLAS's tiles.

    tensor_scale   [M, K] -> fp32 []                      bytes: 2*M*K read
    pack           [M, K] by that -> Packed               2*M*K read, 9/16*M*K written

Checks shapes, makes the outputs and launches `cuda/nvfp4_scale.cu` and `cuda/nvfp4_pack.cu`; nothing waits for the
device, and a CUDA graph may hold both. Codes and scales equal comfy-kitchen's CUDA packer bit for bit
(`tests/gpu/test_nvfp4_packer.py`); a plain PyTorch definition of them is `h3runtime.quant.nvfp4_cuda`. Unlike the
library's, rows aren't padded to 16: M may be any, the scales' padding is zero.

Special values, as the library has them. A tensor scale of 0 (a tensor of zeros): codes 0, block scales 448. A block
that holds Inf: scale 448, its Inf saturates to 6. NaN: passed over where the block's largest value is looked for, coded
as +6; a block of nothing else has scale 448. `tensor_scale` itself is NaN where x holds one, as torch's aminmax has it,
and with that every code saturates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from h3_kernels.cuda_library import launch

BLOCK: Final = 16
TILE_ROWS, TILE_COLUMNS = 128, 4
ALIGNMENT: Final = 16
"""Bytes; of every row of x."""
SMALL_GPU, SMALL_GPU_BLOCKS, BLOCKS_PER_PROCESSOR = 64, 256, 8
"""Thread blocks (of 128 threads) that look for the largest value. Up to 64 multiprocessors 256, which was measured best
on a GB10's 48; above 8 a multiprocessor: on an H200's 132 256 blocks read 2.9 TB/s, 1,056 read 3.9."""
DTYPES: Final = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True)
class Packed:
    """codes uint8 [M, K/2], the even column in the high nibble; block_scale E4M3 [ru(M, 128), ru(K/16, 4)] in tiles,
    its padding 0; tensor_scale fp32 []. E2M1 * E4M3 * tensor_scale is the value."""

    codes: torch.Tensor
    block_scale: torch.Tensor
    tensor_scale: torch.Tensor


def tensor_scale(x: torch.Tensor) -> torch.Tensor:
    """x [M, K] bf16 or fp16, K in multiples of 16 -> amax / (448 * 6), fp32 []: the bits that torch has on CUDA.

    Raises TypeError for another dtype, ValueError for a shape or a device it doesn't take.
    """
    _check(x)
    x = x.contiguous()
    blocks = discovery_blocks(torch.cuda.get_device_properties(x.device).multi_processor_count)
    partials = torch.empty(blocks, dtype=torch.float32, device=x.device)
    scale = torch.empty((), dtype=torch.float32, device=x.device)
    launch(f"h3_nvfp4_scale_{DTYPES[x.dtype]}", x.device, aligned(x), x.numel(), partials, blocks, scale)
    return scale


def discovery_blocks(processors: int) -> int:
    """Thread blocks of `tensor_scale` on a GPU of so many multiprocessors."""
    return SMALL_GPU_BLOCKS if processors <= SMALL_GPU else BLOCKS_PER_PROCESSOR * processors


def pack(x: torch.Tensor, tensor_scale: torch.Tensor) -> Packed:
    """x [M, K] bf16 or fp16, unit stride inside a row, K in multiples of 16; tensor_scale fp32 of one element.

    Raises TypeError for another dtype, ValueError for a shape or a device it doesn't take.
    """
    _check(x)
    check_scale(tensor_scale, x.device)
    made = empty_packed(x.shape[0], x.shape[1], tensor_scale)
    x = aligned(x)
    launch(
        f"h3_nvfp4_pack_{DTYPES[x.dtype]}",
        x.device,
        x,
        x.stride(0),
        x.shape[0],
        x.shape[1],
        tensor_scale,
        made.codes,
        made.block_scale,
    )
    return made


def empty_packed(rows: int, columns: int, tensor_scale: torch.Tensor) -> Packed:
    """Room for [rows, columns] on the scale's device; nothing is cleared, the kernels write padding too."""
    device = tensor_scale.device
    codes = torch.empty((rows, columns // 2), dtype=torch.uint8, device=device)
    scales = torch.empty(
        (-(-rows // TILE_ROWS) * TILE_ROWS, -(-columns // (BLOCK * TILE_COLUMNS)) * TILE_COLUMNS),
        dtype=torch.float8_e4m3fn,
        device=device,
    )
    return Packed(codes, scales, tensor_scale.reshape(()))


def check_scale(tensor_scale: torch.Tensor, device: torch.device) -> None:
    if tensor_scale.dtype != torch.float32 or tensor_scale.numel() != 1:
        raise TypeError(f"the tensor scale is {tensor_scale.dtype} {list(tensor_scale.shape)}, not one float32")
    if tensor_scale.device != device:
        raise ValueError(f"the tensor scale is on {tensor_scale.device}, x on {device}")


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x itself where its rows begin at multiples of 16 bytes and have unit stride, else a copy."""
    size = x.element_size()
    fits = (
        x.stride(1) == 1 and x.data_ptr() % ALIGNMENT == 0 and (x.shape[0] <= 1 or x.stride(0) * size % ALIGNMENT == 0)
    )
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _check(x: torch.Tensor) -> None:
    if x.dtype not in DTYPES:
        raise TypeError(f"x is {x.dtype}; legal: {', '.join(map(str, DTYPES))}")
    if x.dim() != 2 or x.shape[1] % BLOCK:
        raise ValueError(f"x is {list(x.shape)}; legal: [M, K] with K in multiples of {BLOCK}")
    if x.device.type != "cuda":
        raise ValueError(f"x is on {x.device}; legal: cuda")

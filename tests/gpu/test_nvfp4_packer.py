"""The owned NVFP4 packer and scale discovery against comfy-kitchen's CUDA packer and torch, bit for bit.

Every width and row count of H3, tails of rows and columns, each of the 65,536 values of either dtype under every kind
of tensor scale, strided rows, and a CUDA graph.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from h3_kernels.cuda_library import why_unavailable

from h3runtime.quant import nvfp4, tiles

pytestmark = pytest.mark.gpu

WIDTHS = (5376, 7168, 14336)
"""Of x before qkv and FC1, the projection out, FC2 (dit-contract §1.1)."""
ROWS = (1, 15, 16, 17, 127, 128, 129, 4096, 37810)
TAILS = ((1, 16), (3, 48), (130, 80), (129, 272), (257, 5392))
"""Rows and columns that fill no tile of scales and no thread block."""
DTYPES = (torch.bfloat16, torch.float16)
SCALES = (1.0, 1e-3, 2.5e-7, 3e4, 2.0**-126, 1e-39, 1.2e-38, 1e-45, 0.0, 1e30, 3e38, float("inf"), float("nan"), -0.5)
"""Tensor scales that have nothing to do with the tensor: subnormal ones, 0, huge ones, and what must never be one."""


@pytest.fixture(scope="module")
def packer(cuda: torch.device) -> Any:
    if (why := why_unavailable(torch.cuda.get_device_capability(cuda))) is not None:
        pytest.fail(why)
    return import_module("h3_kernels.nvfp4")


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def made(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal, each block at a scale of its own, down to blocks whose scale rounds to zero; some blocks all zero, some
    zeros negative; some values halfway between two codes."""
    source = torch.Generator(device).manual_seed(rows * columns)
    x = torch.empty(rows, columns // 16, 16, device=device).normal_(generator=source)
    powers = torch.empty(rows, columns // 16, 1, device=device).uniform_(-18, 2, generator=source)
    x *= torch.exp2(torch.where(powers < -14, powers, powers.clamp(min=-2)))
    some = torch.empty_like(powers).uniform_(generator=source)
    x = torch.where(some < 0.02, torch.zeros_like(x), x)
    halfway = torch.randint(-24, 25, x.shape, device=device, generator=source) * 0.125
    x = torch.where((some > 0.9), halfway, x)
    return x.reshape(rows, columns).to(dtype)


def kitchen(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [M, K/2] and natural block scales [M, K/16] as bytes; rows that the library pads are cropped."""
    from comfy_kitchen.backends.cuda import quantize_nvfp4

    padded = bool(x.shape[0] % 16)
    codes, scales = quantize_nvfp4(x, scale, pad_16x=padded)
    natural = tiles.unswizzle(scales, x.shape[0], x.shape[1] // 16)
    return codes[: x.shape[0]], natural


def check(packer: Any, x: torch.Tensor, scale: torch.Tensor) -> None:
    made = packer.pack(x, scale)
    codes, scales = kitchen(x.contiguous(), scale)
    natural = tiles.unswizzle(made.block_scale, x.shape[0], x.shape[1] // 16)
    assert made.block_scale.shape == tiles.tiled_shape(x.shape[0], x.shape[1] // 16)
    assert torch.equal(natural, scales), f"{int((natural != scales).sum())} of {scales.numel()} block scales differ"
    assert torch.equal(made.codes, codes), f"{int((made.codes != codes).sum())} of {codes.numel()} bytes differ"
    padding = made.block_scale.view(torch.uint8).int().sum() - natural.int().sum()
    assert int(padding) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_codes_and_scales_are_the_librarys(
    rows: int, columns: int, dtype: torch.dtype, packer: Any, cuda: torch.device
) -> None:
    x = made(rows, columns, dtype, cuda)
    scale = packer.tensor_scale(x)
    assert torch.equal(scale, nvfp4.activation_scale(x))
    check(packer, x, scale)
    check(packer, x, scale * 0.3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), TAILS)
def test_tails(rows: int, columns: int, dtype: torch.dtype, packer: Any, cuda: torch.device) -> None:
    x = made(rows, columns, dtype, cuda)
    scale = packer.tensor_scale(x)
    assert torch.equal(scale, nvfp4.activation_scale(x))
    # The library asks for whole sixteens of rows, or pads; columns are whole blocks in every case.
    check(packer, x, scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_every_value_there_is(scale: float, dtype: torch.dtype, packer: Any, cuda: torch.device) -> None:
    """NaN and Inf among them: alone in a block, with finite ones, and with nothing else."""
    source = torch.Generator(cuda).manual_seed(7)
    patterns = torch.arange(65536, device=cuda, dtype=torch.int32).to(torch.int16)
    mixed = torch.cat([patterns[torch.randperm(65536, device=cuda, generator=source)] for _ in range(4)])
    for bits in (mixed, patterns, patterns.repeat_interleave(16)):
        x = bits.view(dtype).reshape(-1, 256).contiguous()
        check(packer, x, torch.tensor(scale, device=cuda))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_at_every_boundary(dtype: torch.dtype, packer: Any, cuda: torch.device) -> None:
    """One value sets the block's scale, the others step through all codes and midpoints and their neighbours."""
    tops = torch.exp2(torch.arange(-14.0, 12.0, device=cuda)).repeat_interleave(64) * torch.linspace(
        1, 2, 64, device=cuda
    ).repeat(26)
    steps = torch.arange(-30, 30, device=cuda).float() * (0.25 / 6)
    x = (tops[:, None] * steps[None, :]).reshape(-1, 15)
    x = torch.cat([tops.repeat_interleave(4)[:, None], x], 1).to(dtype)
    x = x[: x.shape[0] // 16 * 16].reshape(-1, 256)
    for bits in range(-2, 3):
        moved = (x.view(torch.int16) + bits).view(dtype)
        check(packer, torch.where(x == 0, x, moved), nvfp4.activation_scale(x))
        check(packer, torch.where(x == 0, x, moved), torch.tensor(1.0, device=cuda))


def test_a_tensor_of_zeros(packer: Any, cuda: torch.device) -> None:
    x = torch.zeros(33, 64, dtype=torch.bfloat16, device=cuda)
    x[:, ::3] = -0.0
    scale = packer.tensor_scale(x)
    assert float(scale) == 0
    check(packer, x, scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_scale_of_special_values_is_torchs(dtype: torch.dtype, packer: Any, cuda: torch.device) -> None:
    x = made(300, 5376, dtype, cuda)
    for at, value in ((17, -1000.0), (5000, float("inf")), (300 * 5376 - 1, float("nan")), (0, -float("nan"))):
        x.view(-1)[at] = value
        assert torch.equal(packer.tensor_scale(x).isnan(), nvfp4.activation_scale(x).isnan())
        if not torch.isnan(x).any():
            assert torch.equal(packer.tensor_scale(x), nvfp4.activation_scale(x))
    assert torch.isnan(packer.tensor_scale(x))


def test_rows_that_lie_apart(packer: Any, cuda: torch.device) -> None:
    wide = made(130, 10752, torch.bfloat16, cuda)
    for x in (wide[:, :5376], wide[:, 5376:], wide[:, 4:5380], wide.t()[:160, :128]):
        scale = packer.tensor_scale(x)
        assert torch.equal(scale, nvfp4.activation_scale(x.contiguous()))
        check(packer, x, scale)


def test_a_graph_holds_both(packer: Any, cuda: torch.device) -> None:
    x = made(129, 5376, torch.bfloat16, cuda)
    packer.pack(x, packer.tensor_scale(x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = packer.pack(x, packer.tensor_scale(x))
    x.copy_(made(129, 5376, torch.bfloat16, cuda).flip(0) * 3)
    graph.replay()
    codes, scales = kitchen(x, nvfp4.activation_scale(x))
    assert torch.equal(inside.codes, codes)
    assert torch.equal(tiles.unswizzle(inside.block_scale, 129, 336), scales)


def test_what_it_does_not_take(packer: Any, cuda: torch.device) -> None:
    x = torch.zeros(4, 32, device=cuda)
    with pytest.raises(TypeError, match=r"torch\.float32; legal: torch\.bfloat16, torch\.float16"):
        packer.tensor_scale(x)
    with pytest.raises(ValueError, match="K in multiples of 16"):
        packer.pack(x.bfloat16()[:, :24], torch.ones((), device=cuda))
    with pytest.raises(TypeError, match="not one float32"):
        packer.pack(x.bfloat16(), torch.ones(2, device=cuda))
    with pytest.raises(ValueError, match="on cpu"):
        packer.pack(x.bfloat16(), torch.ones(()))

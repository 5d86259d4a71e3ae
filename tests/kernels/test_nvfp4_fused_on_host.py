"""Producers that end in NVFP4, their CUDA C++ run on the host, against plain PyTorch bit for bit.

What is theirs is held here without a GPU: the order in which squares are added, which roundings there are, where codes
and scales lie. The definition of the packing is
`quant.nvfp4_cuda`; `tests/gpu/test_nvfp4_fused.py` compares the same on a GPU with the other kernels.
"""

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from h3runtime.quant import nvfp4_cuda, tiles
from tests.kernels.nvfp4_fused_on_host import compiled

EPS = 1e-5
KNOWN, FIND = range(2)
"""How the tensor's scale comes about, as the launchers have it."""
GIVEN = 0.0037


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return compiled(tmp_path_factory.mktemp("nvfp4-fused"))


@dataclass(frozen=True)
class Made:
    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor


def call(launcher: object, rows: int, width: int, how: int, *arguments: object) -> Made:
    """The launcher with outputs that are full of rubbish before."""
    made = Made(
        torch.full((rows, width // 2), 0xEE, dtype=torch.uint8),
        torch.full(tiles.tiled_shape(rows, width // 16), 0xEE, dtype=torch.uint8),
        torch.tensor(GIVEN if how == KNOWN else torch.nan),
    )
    slots = torch.full((256,), torch.nan)
    passed = [*arguments, made.tensor_scale, torch.empty(rows), slots, made.codes, made.scales, None]
    if len(arguments) < 10:
        del passed[len(arguments) + 1]  # SwiGLU has no roots of rows
    assert launcher(*map(_c, passed)) == 0  # type: ignore[operator]
    return made


def _c(value: object) -> object:
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_void_p(None if value is None else value.data_ptr())  # type: ignore[attr-defined]


def check(made: Made, wanted: torch.Tensor, how: int) -> None:
    """wanted: the BF16 rows that are packed."""
    scale = torch.tensor(GIVEN) if how == KNOWN else wanted.abs().amax().float() * torch.tensor(1 / 2688.0)
    assert torch.equal(made.tensor_scale, scale)
    codes, scales = nvfp4_cuda.pack(wanted, scale)
    assert torch.equal(made.scales, scales.view(torch.uint8))
    assert torch.equal(made.codes, codes)


def triton_warps(width: int) -> int:
    """As `producers` chooses them."""
    return min(max((1 << (width - 1).bit_length()) // 2048, 1), 8)


def squares_in_order(x: torch.Tensor) -> torch.Tensor:
    """x fp32 [S, W] -> sums of squares [S], added in the order of the Triton kernel."""
    warps = triton_warps(x.shape[1])
    chunks = torch.nn.functional.pad(x * x, (0, -x.shape[1] % (warps * 256))).reshape(x.shape[0], -1, warps, 32, 8)
    sums = chunks[:, 0]
    for chunk in chunks.unbind(1)[1:]:
        sums = sums + chunk
    lanes = sums[..., 0]
    for i in range(1, 8):
        lanes = lanes + sums[..., i]
    for count in (32, warps):
        while count > 1:
            count //= 2
            lanes = lanes[..., :count] + lanes[..., count:]
        lanes = lanes[..., 0]
    return lanes


@pytest.mark.parametrize(("rows", "width"), [(130, 48), (3, 272), (129, 768), (3, 2064), (3, 5376), (2, 8208)])
def test_norm_and_modulation(rows: int, width: int, library: SimpleNamespace) -> None:
    source = torch.Generator().manual_seed(rows * width)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=source) * scale).bfloat16()

    held, update = random(rows, width + 32, scale=3.0), random(rows, width)
    shift, scale, gate = random(6, 3 * width, scale=0.3).chunk(3, -1)
    weight = (1 + random(width, scale=0.1)).bfloat16()
    index = torch.randint(0, 6, (rows,), dtype=torch.int32, generator=source)
    index[: rows // 2] = 2
    for residual in (False, True):
        x = held[:, :width]
        if residual:
            # In FP32 the product of two BF16 numbers is exact, so this is the fused multiply-add's one rounding.
            x = (x.double() + update.double() * gate[index].double()).float().bfloat16()
        roots = 1 / torch.sqrt(squares_in_order(x.float()) / width + torch.tensor(EPS))
        wanted = (x.float() * roots[:, None] * weight.float()).bfloat16() * (1 + scale[index]) + shift[index]
        for how in (KNOWN, FIND):
            rows_of_x = held.clone()
            given = (
                rows_of_x,
                width + 32,
                rows,
                width,
                update if residual else None,
                width,
                weight,
                shift,
                scale,
                gate,
            )
            more = (3 * width, index, EPS, triton_warps(width), how)
            check(call(library.h3_nvfp4_norm_modulate, rows, width, how, *given, *more), wanted, how)
            assert torch.equal(rows_of_x[:, :width], x)
            assert torch.equal(rows_of_x[:, width:], held[:, width:])


@pytest.mark.parametrize(("rows", "width"), [(130, 48), (3, 272), (257, 256)])
def test_swiglu(rows: int, width: int, library: SimpleNamespace) -> None:
    """Among ordinary gates those whose quotient is another's business: 0, huge, tiny ones."""
    source = torch.Generator().manual_seed(rows * width)
    x = (torch.randn(rows, 2 * width, generator=source) * 3).bfloat16()
    for at, value in enumerate((0.0, -0.0, 100.0, -85.0, -1e30, 1e-30, 64.0, -64.0, 8.7e-19, 8.6e-19)):
        x[at % rows, 16 * (at // rows)] = value
    gate, value = x.chunk(2, -1)
    power = torch.exp(-gate.double()).float()
    wanted = (gate.float() / (1 + power)).bfloat16() * value
    for how in (KNOWN, FIND):
        given = x.clone()
        check(call(library.h3_nvfp4_swiglu, rows, width, how, given, 2 * width, rows, width, how), wanted, how)
        assert torch.equal(given, x)


def test_a_row_that_no_warps_hold_is_refused(library: SimpleNamespace) -> None:
    nothing = [ctypes.c_void_p(None)] * 5
    sizes = [ctypes.c_int64(one) for one in (16400, 1, 16400)]
    for warps in (0, 8, 9):
        refused = library.h3_nvfp4_norm_modulate(
            None, *sizes, None, ctypes.c_int64(0), None, None, None, None, ctypes.c_int64(0), None, ctypes.c_float(EPS),
            ctypes.c_int64(warps), ctypes.c_int64(KNOWN), *nothing, None,
        )  # fmt: skip
        assert refused == 1


def moved(x: torch.Tensor, ulp: int) -> torch.Tensor:
    return (x.view(torch.int32) + ulp).view(torch.float32)


@pytest.mark.parametrize("of_power", range(-4, 5))
def test_the_short_quotient_is_the_divisions_for_every_gate(of_power: int) -> None:
    """Rounded to BF16, whatever a GPU's power and reciprocal are within 4 and 3 ulp: of every gate that it is for."""
    gate = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    gate = gate[(gate.abs() >= 2.0**-60) & (gate.abs() <= 64)]
    below = 1 + moved(torch.exp(-gate.double()).float(), of_power)
    wanted = (gate / below).bfloat16()
    for of_reciprocal in range(-3, 4):
        r = moved(1 / below, of_reciprocal)
        q = gate * r
        left = (gate.double() - below.double() * q.double()).float()
        got = (q.double() + r.double() * left.double()).float().bfloat16()
        assert torch.equal(got, wanted)

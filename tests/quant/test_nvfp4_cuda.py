"""NVFP4 as the CUDA packer makes it, on a CPU: beside the eager definition, and at special values."""

from dataclasses import replace

import pytest
import torch

from h3runtime.quant import nvfp4, nvfp4_cuda, tiles
from tests.quant.nvfp4_recorded import cases, digest, digests, gpu_reciprocal

NAN, INF = float("nan"), float("inf")
ZEROS, TOP = 0x00, 0x7E
"""E4M3 bytes: 0 and 448."""


def one_block(values: list[float], scale: float, dtype: torch.dtype = torch.bfloat16) -> tuple[int, list[int]]:
    """The scale's byte and the codes of the values, which zeros fill up to 16."""
    x = torch.tensor([values + [0.0] * (16 - len(values))], dtype=dtype)
    codes, scales = nvfp4_cuda.pack(x, torch.tensor(scale))
    return int(scales.view(torch.uint8)[0, 0]), [int(code) for byte in codes[0] for code in (byte >> 4, byte & 15)]


def test_it_is_the_eager_definition_where_every_reciprocal_is_exact() -> None:
    """Tensor scale and block scales are powers of two; values on the midpoints and around them among them."""
    source = torch.Generator().manual_seed(1)
    x = torch.randint(-24, 25, (130, 12, 16), generator=source) * 0.25
    x += torch.randn(x.shape, generator=source) * (torch.rand(x.shape, generator=source) < 0.3)
    x = x.clamp(-6, 6)
    x[..., 5] = 6.0
    x = x.bfloat16() * torch.exp2(torch.randint(-5, 4, (130, 12, 1), generator=source)).bfloat16()
    scale = torch.tensor(2.0**-3)
    codes, scales = nvfp4_cuda.pack(x.flatten(1), scale)
    eager = nvfp4.quantize(x.flatten(1), scale)
    assert torch.equal(codes, eager.codes[:130])
    assert torch.equal(scales.view(torch.uint8), eager.block_scale.view(torch.uint8))


def share(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.view(torch.uint8) != b.view(torch.uint8)).float().mean())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_elsewhere_few_codes_are_the_neighbour(dtype: torch.dtype) -> None:
    """By a scale that came of the tensor itself, values of few bits often lie on a midpoint, where the last bit of a
    quotient decides: over 30 tensors of BF16 0.08 % of the bytes differ, at most 0.6 %."""
    shares = []
    for seed in range(6):
        x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(seed)).to(dtype)
        scale = nvfp4.activation_scale(x)
        codes, scales = nvfp4_cuda.pack(x, scale)
        eager = nvfp4.quantize(x, scale)
        apart = (scales.view(torch.uint8).int() - eager.block_scale.view(torch.uint8).int()).abs()
        assert int(apart.max()) <= 1 and float((apart != 0).float().mean()) < 0.01
        shares.append(share(codes, eager.codes))
        made = replace(eager, codes=codes, block_scale=scales)
        decoded, wanted = nvfp4.dequantize_fp32(made), nvfp4.dequantize_fp32(eager)
        assert float((decoded - wanted).norm() / wanted.norm()) < 0.02
    assert max(shares) < 0.02 and 0 < sum(shares) / len(shares) < 5e-3


def test_it_is_what_the_library_made_on_a_gpu_bit_for_bit() -> None:
    """With that GPU's reciprocal: every value of either dtype by every kind of tensor scale, and bell-shaped values by
    their own scales, for each mantissa that BF16 has. With the rounded reciprocal few of those differ, by few codes."""
    recorded, reciprocal = digests(), gpu_reciprocal()
    shares = []
    for name, x, scale in cases():
        codes, scales = nvfp4_cuda.pack(x, scale, reciprocal)
        natural = tiles.unswizzle(scales, x.shape[0], x.shape[1] // 16)
        assert digest(codes, natural) == recorded.pop(name), name
        if " up to " in name:
            shares.append(share(codes, nvfp4_cuda.pack(x, scale)[0]))
    assert not recorded
    assert 0 < sum(shares) / len(shares) < 1e-3 and max(shares) < 0.01


def test_another_machines_reciprocal_can_be_given() -> None:
    """One that is an ulp off changes what lies on midpoints; one that is twice too large doubles the scales."""
    x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(7)).bfloat16()
    scale = nvfp4.activation_scale(x)
    codes, scales = nvfp4_cuda.pack(x, scale)
    one_ulp_up, _ = nvfp4_cuda.pack(x, scale, lambda a: torch.nextafter(1 / a, torch.tensor(INF)))
    assert 0 < share(codes, one_ulp_up) < 0.02
    _, doubled = nvfp4_cuda.pack(x, scale, lambda a: 2 / a)
    assert torch.equal(doubled.float(), (2 * scales.float()).clamp(max=448))


@pytest.mark.parametrize(
    ("values", "scale", "wanted"),
    [
        # The sign of a zero is kept, also of what a subnormal is flushed to.
        ([6.0, -0.0, 0.0, 2.0**-130, -(2.0**-130)], 1.0, (0x38, [7, 8, 0, 0, 8])),
        # Ties go to the even code.
        ([6.0, 0.25, 0.75, 1.25, -1.75, 2.5, 3.5, 5.0, -5.0], 1.0, (0x38, [7, 0, 2, 2, 12, 4, 6, 6, 14])),
        # A block of zeros, and one whose scale rounds to zero: the multiplier is the largest number, codes saturate.
        ([0.0, -0.0], 1.0, (ZEROS, [0, 8])),
        ([2.0**-9, -(2.0**-12), 0.0, -0.0], 1.0, (ZEROS, [7, 15, 0, 8])),
        # The smallest scale that isn't zero.
        ([6 * 2.0**-9, -(2.0**-9)], 1.0, (0x01, [7, 10])),
        # Just 448, and beyond it: codes saturate.
        ([2688.0, 448.0], 1.0, (TOP, [7, 2])),
        ([1e6, -1e5, 448.0], 1.0, (TOP, [7, 15, 2])),
        # A tensor of zeros has scale 0.
        ([0.0, -0.0], 0.0, (TOP, [0, 8])),
        ([INF, 1.0, -448.0, -INF], 1.0, (TOP, [7, 0, 10, 15])),
        ([NAN, 6.0, -3.0], 1.0, (0x38, [7, 7, 13])),
        ([-NAN] * 16, 1.0, (TOP, [7] * 16)),
        # A tensor scale that is NaN, from a tensor that holds one: everything saturates.
        ([1.0, -2.0, 0.0], NAN, (TOP, [7, 15, 0])),
    ],
)
def test_special_values(values: list[float], scale: float, wanted: tuple[int, list[int]]) -> None:
    """What comfy-kitchen's binaries do, instruction by instruction; `tests/gpu` runs them beside ours."""
    code, codes = one_block(values, scale)
    assert (code, codes[: len(wanted[1])]) == wanted


def test_rows_are_not_padded_and_scales_padding_is_zero() -> None:
    x = torch.ones(17, 80, dtype=torch.bfloat16)
    codes, scales = nvfp4_cuda.pack(x, torch.tensor(0.25))
    assert codes.shape == (17, 40) and scales.shape == tiles.tiled_shape(17, 5)
    natural = tiles.unswizzle(scales, 128, 8)
    assert int((natural != 0).sum()) == 17 * 5 and bool((natural[:17, :5] != 0).all())

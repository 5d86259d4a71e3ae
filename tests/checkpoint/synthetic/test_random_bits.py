"""Random codes of every stored dtype: valid, of the spread that was asked for, the same whoever makes them."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.checkpoint.synthetic.random_bits import INT8_CODES, NVFP4_PAIRS, Bits, floats, positive
from h3runtime.quant import nvfp4
from h3runtime.quant.stored import Nvfp4Weight

PLAIN = (torch.float32, torch.bfloat16, torch.float16)
COUNT = 1 << 16


def values(bits: Bits, dtype: torch.dtype, key: str = "a") -> torch.Tensor:
    made = np.frombuffer(bits.fill(key, COUNT * bits.width), dtype=np.uint8).copy()
    return torch.from_numpy(made).view(dtype).double()


@given(dtype=st.sampled_from(PLAIN), std=st.floats(1e-3, 3.0))
def test_plain_numbers_have_the_asked_spread(dtype: torch.dtype, std: float) -> None:
    """Its kurtosis is near a normal distribution's 3, and a sum of many never meets a number far out."""
    x = values(floats(dtype, std), dtype)
    assert torch.isfinite(x).all()
    assert abs(float(x.std()) / std - 1) < 0.02 and abs(float(x.mean())) < 0.02 * std
    assert 2.5 < float((x**4).mean() / x.square().mean() ** 2) < 3.1
    assert float(x.abs().max()) < 2.5 * std


@pytest.mark.parametrize("rms", [20.0, 99.0, 144.0, 180.0])
def test_fp8_codes_are_never_nan(rms: float) -> None:
    bits = floats(torch.float8_e4m3fn, rms)
    x = values(bits, torch.float8_e4m3fn)
    assert torch.isfinite(x).all() and float(x.abs().max()) <= 448
    assert abs(float(x.square().mean().sqrt()) / bits.rms - 1) < 0.02
    assert abs(bits.rms / rms - 1) < 0.07, "E4M3 has no finer steps"


@pytest.mark.parametrize(("dtype", "rms", "binades"), [(torch.float8_e4m3fn, 160.0, 2), (torch.float32, 1e-4, 1)])
def test_scales_are_positive_and_finite(dtype: torch.dtype, rms: float, binades: int) -> None:
    bits = positive(dtype, rms, binades)
    x = values(bits, dtype)
    assert torch.isfinite(x).all() and float(x.min()) > 0
    assert float(x.max() / x.min()) < 2.0**binades
    assert abs(float(x.square().mean().sqrt()) / bits.rms - 1) < 0.02 and abs(bits.rms / rms - 1) < 0.07


def test_integer_and_fp4_codes_have_the_spread_they_claim() -> None:
    assert abs(float(values(INT8_CODES, torch.int8).square().mean().sqrt()) / INT8_CODES.rms - 1) < 0.01
    codes = torch.frombuffer(bytearray(NVFP4_PAIRS.fill("a", 128 * 256)), dtype=torch.uint8).reshape(128, 256)
    ones = torch.ones(nvfp4.scale_shape((128, 512))).to(torch.float8_e4m3fn)
    x = nvfp4.dequantize_fp32(Nvfp4Weight(codes, ones, torch.tensor(1.0), (128, 512)))
    assert abs(float(x.square().mean().sqrt()) / NVFP4_PAIRS.rms - 1) < 0.01


def test_known_bytes() -> None:
    """The same on every machine and in every version of numpy."""
    made = floats(torch.bfloat16, 0.02).fill("0:blocks.0.mlp.fc1.weight:0:0", 4096)
    assert hashlib.sha256(made).hexdigest() == "ee992bfa63aae2e71e1ef739e25c790ee060223235c554be08164e59c713221a"


def test_keys_and_lengths() -> None:
    bits = floats(torch.float16, 0.1)
    one = bytes(bits.fill("a", 64))
    assert one == bytes(bits.fill("a", 64)) == bytes(bits.fill("a", 200))[:64]
    assert one != bytes(bits.fill("b", 64)) and len(bits.fill("a", 6)) == 6 and len(bits.fill("a", 0)) == 0

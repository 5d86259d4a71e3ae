"""FP8 products: the definition by hand, PyTorch's own, and the scales that files bring along."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.backends.linear import fp8 as linear_fp8
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.fp8 import Fp8Linear, Fp8Rows, definition
from h3runtime.quant import fp8
from h3runtime.quant.stored import PlainWeight
from tests.backends.linears import CPU, activations, apart, error, randn, wanted

ULPS = 1e-3
"""Of BF16 results, the share that another order of additions may round to a neighbour. 5e-4 was measured."""
HALF_A_STEP, FP32_SUM = 2.0**-8, 2.0**-22
"""Of a value, what rounding it to BF16 may cost; of the sizes of 256 terms together, what adding them up in FP32."""


def by_hand(x: torch.Tensor, weight: Fp8Rows) -> torch.Tensor:
    """Scales and codes by FP64 arithmetic, a row at a time; fp64 [M, N]."""
    found = []
    for row in x.double():
        scale = torch.tensor(max(float(row.abs().max().float() / 448), 1e-30)).double()
        codes = (row.float() * (1 / scale.float())).to(torch.float8_e4m3fn).double()
        found.append(weight.codes.double() @ codes * scale * weight.scale[0].double())
    return torch.stack(found)


@pytest.mark.parametrize("rows", [1, 17, 128])
def test_the_definition_is_what_a_row_at_a_time_gives(rows: int) -> None:
    backend, x = Fp8Linear(), activations(rows, outliers=True)
    resident = backend.prepare(PlainWeight(randn(48, 256, seed=3)), CPU)
    differing, most = apart(backend.apply(x, resident), by_hand(x, resident).bfloat16())
    assert differing <= ULPS and most <= 1


@pytest.mark.parametrize("rows", [1, 15, 129])
def test_pytorch_s_own_product_agrees_on_the_cpu(rows: int) -> None:
    """What a GPU runs in the definition's place, where it runs on a CPU too: with scales per row.

    Steps of BF16 are no measure where terms cancel: of terms that are 362 together, a sum of -0.0034 was off by 2.4e-5,
    one part in 2^23.8 of them and a step and a half of the result.
    """
    x, x_scale = fp8.quantize_rows(activations(rows, outliers=True))
    weight, scale = fp8.quantize_rows(randn(48, 256, seed=4))
    by_row = scale.reshape(1, -1)
    theirs = torch._scaled_mm(x, weight.t(), x_scale, by_row, out_dtype=torch.bfloat16)
    ours = definition(x, weight, x_scale, by_row, torch.bfloat16)
    assert apart(theirs, ours)[0] <= ULPS
    scales = x_scale.double() * by_row.double()
    exact, terms = x.double() @ weight.double().t() * scales, x.double().abs() @ weight.double().abs().t() * scales
    for found in (theirs, ours):
        assert bool(((found.double() - exact).abs() <= exact.abs() * HALF_A_STEP + terms * FP32_SUM).all())


@pytest.mark.parametrize("codes", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_file_s_own_scales_are_used(codes: torch.dtype) -> None:
    stored, x = fp8.quantize(randn(48, 256, seed=5), codes), activations(17)
    own = replace(stored, input_scale=torch.tensor(float(x.abs().max()) / 448))
    assert Fp8Linear().prepare(own, CPU).codes is own.codes
    assert error(Fp8Linear().apply(x, own), wanted(x, stored)) < 0.04
    # A stale one saturates instead of overflowing.
    stale = replace(stored, input_scale=torch.tensor(1e-3))
    clipped = Fp8Linear().apply(x, stale)
    assert torch.isfinite(clipped).all()
    assert error(clipped, wanted(x.float().clamp(-0.448, 0.448), stored)) < 0.04


def test_without_one_an_activation_is_rounded_as_it_is() -> None:
    """ComfyUI's rule (checkpoint-formats §4.3): a scale of 1."""
    stored, x = fp8.quantize(randn(48, 256, seed=6)), activations(17)
    rounded = x.to(torch.float8_e4m3fn).bfloat16()
    assert error(Fp8Linear().apply(x, stored), wanted(rounded, stored)) < 0.003


def test_an_odd_shape_is_left_to_the_definition() -> None:
    stored, x = PlainWeight(randn(40, 56, seed=7).bfloat16()), activations(9, 56)
    assert "multiples of 16" in str(Fp8Linear().why_unfit(stored))
    assert torch.equal(Fp8Linear().apply(x, Fp8Linear().prepare(stored, CPU)), DequantLinear().apply(x, stored))


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(-20, 20))
def test_a_row_is_off_by_half_a_step_at_most(seed: int, rows: int, exponent: int) -> None:
    """E4M3 has 16 steps an octave (8 per binade and 448 in the last), so 1/16 of a value or half a smallest step."""
    x = randn(rows, 32, seed=seed) * 2.0**exponent
    codes, scale = fp8.quantize_rows(x)
    off = (codes.double() * scale.double() - x.double()).abs()
    assert bool((off <= (x.double().abs() / 16).maximum(2.0**-10 * scale.double()) * (1 + 1e-5)).all())
    assert bool((codes.float().abs().amax(1) == 448).all())


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (LinearFacts("cpu"), None),
        (LinearFacts("cuda", (8, 9), (13, 0)), None),
        (LinearFacts("cuda", (9, 0), (13, 0)), None),
        (LinearFacts("cuda", (12, 1), (13, 0)), None),
        (LinearFacts("cuda", (8, 6), (13, 0)), "needs SM 8.9 or newer, and this is SM 8.6"),
    ],
)
def test_where_it_runs(facts: LinearFacts, told: str | None) -> None:
    assert Fp8Linear().why_not(facts) == told


@pytest.mark.parametrize(("width", "fast"), [(5376, True), (7168, False), (14336, False)])
def test_long_sums_are_kept_in_fp32(monkeypatch: pytest.MonkeyPatch, width: int, fast: bool) -> None:
    asked: list[bool] = []

    def product(x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor, **named: object) -> torch.Tensor:
        asked.append(bool(named["use_fast_accum"]))
        return torch.empty(x.shape[0], weight.shape[1], dtype=torch.bfloat16, device="meta")

    monkeypatch.setattr(linear_fp8, "_has_kernel", lambda *_: True)
    monkeypatch.setattr(torch, "_scaled_mm", product)
    x, weight = (torch.empty(n, width, dtype=torch.float8_e4m3fn, device="meta") for n in (3, 16))
    scales = torch.empty(3, 1, device="meta"), torch.empty(1, 16, device="meta")
    linear_fp8.multiplied(x, weight, *scales, torch.bfloat16)
    assert asked == [fast]

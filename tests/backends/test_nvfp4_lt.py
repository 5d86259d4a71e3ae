"""4-bit products by cuBLASLt: what the library is handed is what the emulation multiplies; where it runs, by facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_lt import Nvfp4LtLinear
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight
from tests.backends.linears import CPU, activations, error, randn
from tests.kernels.cublaslt import Played, played

SPARK = LinearFacts("cuda", (12, 1), (13, 0), "0.2.40", True, cublaslt=130400)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    with played(monkeypatch) as library:
        yield library


def stored(rows: int = 48, columns: int = 256) -> Nvfp4Weight:
    return nvfp4.quantize(randn(rows, columns, seed=1) * 0.05)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 127, 128, 129])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.usefixtures("fake")
def test_it_is_the_emulation(rows: int, dtype: torch.dtype) -> None:
    """Sums in FP64 there, in FP32 here; a bf16 rounding of results that lie near a tie may go either way."""
    x, weight = activations(rows, outliers=True).to(dtype), stored()
    got, wanted = Nvfp4LtLinear().apply(x, weight), Nvfp4EmulatedLinear().apply(x, weight)
    assert got.shape == (rows, 48) and got.dtype is dtype
    assert error(got, wanted) < (1e-6 if dtype is torch.float32 else 1e-3)


@pytest.mark.parametrize("given", [None, 2e-3])
@pytest.mark.usefixtures("fake")
def test_bias_awq_scale_and_stored_scale_are_where_the_base_has_them(given: float | None) -> None:
    extras = replace(
        stored(50),
        bias=torch.linspace(-1, 1, 50).bfloat16(),
        pre_quant_scale=torch.linspace(0.5, 2, 256).bfloat16(),
        input_scale=None if given is None else torch.tensor(given),
    )
    x = activations(34).reshape(2, 17, 256)
    got = Nvfp4LtLinear().apply(x, extras)
    assert got.shape == (2, 17, 50)
    assert error(got, Nvfp4EmulatedLinear().apply(x, extras)) < 2e-3


def test_rows_of_padding_are_not_multiplied(fake: Played) -> None:
    """A packer may pad rows to 16; the product is of those that mean something, where they lie."""
    x, weight = activations(17), stored()
    scale = nvfp4.activation_scale(x)
    padded = nvfp4.quantize(x, scale)
    assert padded.codes.shape[0] == 32
    rows = Nvfp4Rows(padded.codes, padded.block_scale, scale, 17, x.dtype)
    assert torch.equal(Nvfp4LtLinear().apply(rows, weight), Nvfp4LtLinear().apply(x, weight))
    assert fake.count("heuristic") == 1 and fake.count("matmul") == 2


def test_a_request_makes_no_handle(fake: Played) -> None:
    """Loading does, for the first layer that it can multiply."""
    backend = Nvfp4LtLinear()
    backend.prepare(replace(stored(), full_precision=True), CPU)
    assert fake.count("create") == 0
    resident = backend.prepare(stored(), CPU)
    assert fake.count("create") == 1
    for _ in range(3):
        backend.apply(activations(17), backend.prepare(stored(), CPU))
        Nvfp4LtLinear().apply(activations(17), resident)
    assert (fake.count("create"), fake.count("heuristic"), fake.count("matmul")) == (1, 1, 6)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (LinearFacts("cpu"), "needs a CUDA device, and this is cpu"),
        (replace(SPARK, capability=(9, 0)), "needs SM 10.0 or newer, and this is SM 9.0"),
        (SPARK, None),
        (replace(SPARK, capability=(10, 0), kitchen=None), None),
        (replace(SPARK, cublaslt=None), "torch has loaded no libcublasLt"),
        (replace(SPARK, cublaslt=120604), "needs cuBLAS 12.8 or newer, whose products have block scales, and this is "
         "cuBLAS 12.6.4"),
        (replace(SPARK, cublaslt=120800), None),
    ],
)  # fmt: skip
def test_where_it_runs(facts: LinearFacts, told: str | None) -> None:
    assert Nvfp4LtLinear().why_not(facts) == told


def test_it_says_that_nobody_ran_it() -> None:
    assert Nvfp4LtLinear.grade == "experimental" and "never run" in Nvfp4LtLinear().note
    assert linear_facts(CPU).cublaslt is None and linear_facts(CPU).told_cublaslt == "no cuBLASLt"
    assert SPARK.told_cublaslt == "cuBLAS 13.4.0"

"""4-bit products by CUTLASS: what the kernel is handed multiplies to what the emulation gives; where it can run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from h3_kernels import nvfp4_cutlass

from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4_cutlass import Nvfp4CutlassLinear
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight
from tests.backends.linears import CPU, activations, randn
from tests.kernels.nvfp4_gemm_on_host import installed


def stored(rows: int = 48, columns: int = 256) -> Nvfp4Weight:
    return nvfp4.quantize(randn(rows, columns, seed=1) * 0.05)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 127, 128, 129])
@pytest.mark.parametrize("given", [None, 2e-3])
def test_products_are_the_emulation_s(rows: int, given: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: FP32 holds these sums exactly, in any order."""
    library = installed(monkeypatch)
    scale = None if given is None else torch.tensor(given)
    x, weight = activations(rows, outliers=True), replace(stored(), input_scale=scale)
    got = Nvfp4CutlassLinear().apply(x, weight)
    assert library.runs == 1 and got.shape == (rows, 48)
    assert torch.equal(got, Nvfp4EmulatedLinear().apply(x, weight))


@pytest.mark.parametrize("rows", [1, 17, 129])
def test_what_a_producer_packed_without_rows_of_padding_is_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    x, weight = activations(rows, outliers=True), stored()
    made = nvfp4.quantize(x)
    packed = Nvfp4Rows(made.codes[:rows], made.block_scale, made.tensor_scale, rows, x.dtype)
    assert torch.equal(Nvfp4CutlassLinear().apply(packed, weight), Nvfp4CutlassLinear().apply(x, weight))


def test_a_bias_comes_after_and_an_awq_scale_before(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    extras = replace(
        stored(), bias=torch.linspace(-1, 1, 48).bfloat16(), pre_quant_scale=torch.linspace(0.5, 2, 256).bfloat16()
    )
    x = activations(17).reshape(1, 17, 256)
    got, wanted = Nvfp4CutlassLinear().apply(x, extras), Nvfp4EmulatedLinear().apply(x, extras)
    assert got.shape == (1, 17, 48) and torch.equal(got, wanted)


def test_zeros_stay_zeros_and_other_dtypes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    assert not Nvfp4CutlassLinear().apply(torch.zeros(17, 256, dtype=torch.bfloat16), stored()).any()
    with pytest.raises(ValueError, match=r"gives torch.bfloat16, and x is torch.float16"):
        Nvfp4CutlassLinear().apply(activations(17).half(), stored())


def test_the_library_is_made_when_a_weight_is_prepared_and_only_for_one_that_it_multiplies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[torch.device] = []
    monkeypatch.setattr(nvfp4_cutlass, "load", loaded.append)
    backend = Nvfp4CutlassLinear()
    assert isinstance(backend.prepare(stored(), CPU), Nvfp4Weight) and loaded == [CPU]
    backend.prepare(replace(stored(), full_precision=True), CPU)
    backend.prepare(stored(48, 48), CPU)
    assert loaded == [CPU]


H200 = LinearFacts("cuda", (9, 0), (13, 0), "0.2.40", True)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (LinearFacts("cpu"), "needs a CUDA device, and this is cpu"),
        (H200, "needs SM 10.0, 10.3, 12.0, 12.1, and this is SM 9.0"),
        (replace(H200, capability=(11, 0)), "this is SM 11.0"),
        (replace(H200, capability=(12, 1), kitchen=None), "no library"),
    ],
)
def test_where_it_runs(facts: LinearFacts, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvfp4_cutlass.cuda_library, "why_unavailable", lambda *_: "no library")
    assert told in str(Nvfp4CutlassLinear().why_not(facts))


@pytest.mark.parametrize("capability", [(10, 0), (10, 3), (12, 0), (12, 1)])
def test_nothing_but_the_library_is_needed_on_blackwell(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvfp4_cutlass.cuda_library, "why_unavailable", lambda *_: None)
    assert Nvfp4CutlassLinear().why_not(LinearFacts("cuda", capability)) is None


def test_a_shape_that_the_kernel_does_not_take_is_left_to_the_definition() -> None:
    assert "multiples of 8 by 32" in str(Nvfp4CutlassLinear().why_unfit(stored(48, 48)))

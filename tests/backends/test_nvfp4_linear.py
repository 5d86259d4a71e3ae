"""4-bit products: the emulation's operands are the packer's, exactly; the real one says why it can't run."""

from __future__ import annotations

from dataclasses import replace

import comfy_kitchen
import pytest
import torch

from h3runtime.backends.linear import nvfp4_packing
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear, definition
from h3runtime.quant import nvfp4, slices
from h3runtime.quant.stored import Nvfp4Weight
from tests.backends.linears import activations, error, randn


def stored(rows: int = 48, columns: int = 256) -> Nvfp4Weight:
    return nvfp4.quantize(randn(rows, columns, seed=1) * 0.05)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 129])
@pytest.mark.parametrize("given", [None, 2e-3])
def test_the_sums_are_those_of_what_the_packer_makes_of_x(rows: int, given: float | None) -> None:
    """Packed and unpacked in full, then multiplied in FP64: what a block-scaled GEMM with exact sums would give."""
    scale = None if given is None else torch.tensor(given)
    x, weight = activations(rows, outliers=True), replace(stored(), input_scale=scale)
    packed = nvfp4.dequantize_fp32(nvfp4.quantize(x, scale)).double()
    want = packed @ nvfp4.dequantize_fp32(weight).double().T
    assert error(definition(x, weight).double(), want) < 0.003
    assert error(definition(x.float(), weight), want) < 1e-5 if given else True


def test_operands_are_exact_in_bf16_and_equal_the_library_s() -> None:
    x, weight = activations(32, outliers=True), stored()
    scale = nvfp4.activation_scale(x)
    codes, block_scale = comfy_kitchen.quantize_nvfp4(x, scale)
    theirs = nvfp4.dequantize_unscaled(Nvfp4Weight(codes, block_scale, scale, (32, 256)), torch.float32)
    ours = nvfp4.rounded_unscaled(x, scale, torch.float32)
    assert torch.equal(ours, theirs)
    assert torch.equal(nvfp4.rounded_unscaled(x, scale, torch.bfloat16).float(), ours)
    decoded = nvfp4.dequantize_unscaled(weight, torch.float32)
    assert torch.equal(nvfp4.dequantize_unscaled(weight, torch.bfloat16).float(), decoded)


def test_slices_of_rows_share_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = activations(128, outliers=True).float(), stored()
    whole = definition(x, weight)
    monkeypatch.setattr("h3runtime.backends.linear.nvfp4_emulated.SLICE_ELEMENTS", 32 * 256)
    assert error(definition(x, weight), whole) < 1e-6
    assert x.numel() < slices.SLICE_ELEMENTS


@pytest.mark.parametrize("columns", [56, 40])
def test_padding_means_nothing(columns: int) -> None:
    x, weight = activations(17, columns), stored(50, columns)
    packed = nvfp4.dequantize_fp32(nvfp4.quantize(x))
    got = Nvfp4EmulatedLinear().apply(x, weight)
    assert got.shape == (17, 50) and error(got, packed @ nvfp4.dequantize_fp32(weight).T) < 0.003


def multiplied(a: torch.Tensor, b: torch.Tensor, **told: torch.Tensor) -> torch.Tensor:
    """comfy-kitchen's product on Blackwell, played: codes [M, K/2] and [N, K/2], scales in tiles (checkpoint-formats
    §3, §8); M may be any."""
    assert a.shape[1] == b.shape[1] and a.shape[1] * 2 % 32 == 0 and b.shape[0] % 8 == 0
    assert told["block_scale_a"].shape == (-(-a.shape[0] // 128) * 128, -(-a.shape[1] // 8 // 4) * 4)
    left, right = (
        nvfp4.dequantize_fp32(
            Nvfp4Weight(codes, told[f"block_scale_{side}"], scale, (codes.shape[0], 2 * codes.shape[1]))
        )
        for side, codes, scale in (("a", a, told["tensor_scale_a"]), ("b", b, told["tensor_scale_b"]))
    )
    return (left @ right.T).to(told["out_dtype"])  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 127, 128, 129])
def test_the_library_s_product_is_the_emulation_s(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = activations(rows, outliers=True), stored()
    monkeypatch.setattr(comfy_kitchen, "scaled_mm_nvfp4", multiplied)
    got = Nvfp4Linear().apply(x, weight)
    assert got.shape == (rows, 48) and error(got, definition(x, weight)) < 0.004
    assert not Nvfp4Linear().apply(torch.zeros_like(x), weight).any()


@pytest.mark.parametrize("rows", [1, 17, 128, 129])
@pytest.mark.parametrize("given", [None, 2e-3])
def test_rows_that_the_library_padded_are_cropped(
    rows: int, given: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packer takes 16 rows at a time: the codes are the definition's, and below them are zeros."""
    scale = None if given is None else torch.tensor(given)
    x, weight = activations(rows, outliers=True), replace(stored(), input_scale=scale)
    monkeypatch.setattr(comfy_kitchen, "scaled_mm_nvfp4", multiplied)
    monkeypatch.setattr(nvfp4_packing, "has_packer", lambda *_: True)
    made, plain = (
        nvfp4_packing.packed(x, scale),
        nvfp4.pack_rows(x, nvfp4_packing.found_scale(x) if scale is None else scale),
    )
    assert made.codes.shape[0] % 16 == 0 and made.rows == plain.rows == plain.codes.shape[0] == rows
    assert torch.equal(made.codes[:rows], plain.codes) and not made.codes[rows:].any()
    assert torch.equal(made.block_scale.view(torch.uint8), plain.block_scale.view(torch.uint8))
    got = Nvfp4Linear().apply(x, weight)
    assert got.shape == (rows, 48) and error(got, definition(x, weight)) < 0.004


def test_rows_in_slices_are_packed_as_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x = activations(300, outliers=True)
    whole = nvfp4.pack_rows(x, nvfp4.activation_scale(x))
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", 128 * 256)
    made = nvfp4.pack_rows(x, nvfp4.activation_scale(x))
    assert torch.equal(made.codes, whole.codes)
    assert torch.equal(made.block_scale.view(torch.uint8), whole.block_scale.view(torch.uint8))


def test_a_bias_and_an_awq_scale_come_after_and_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comfy_kitchen, "scaled_mm_nvfp4", multiplied)
    extras = replace(
        stored(),
        bias=torch.linspace(-1, 1, 48).bfloat16(),
        pre_quant_scale=torch.linspace(0.5, 2, 256).bfloat16(),
    )
    x = activations(17)
    assert error(Nvfp4Linear().apply(x, extras), Nvfp4EmulatedLinear().apply(x, extras)) < 0.004


H200 = LinearFacts("cuda", (9, 0), (13, 0), "0.2.40", True)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (LinearFacts("cpu", kitchen="0.2.40", kitchen_compiled=True), "needs a CUDA device, and this is cpu"),
        (H200, "needs SM 10.0 or newer, and this is SM 9.0"),
        (replace(H200, capability=(12, 1)), None),
        (replace(H200, capability=(10, 0), kitchen=None), "comfy-kitchen is not installed"),
        (replace(H200, capability=(10, 0), kitchen_compiled=False), "installed without its CUDA part"),
        (replace(H200, capability=(12, 0), cuda=(12, 8)), "need CUDA 13.0, and torch was built for CUDA 12.8"),
        (replace(H200, capability=(12, 0), cuda=None), "torch was built without CUDA"),
    ],
)
def test_where_it_runs(facts: LinearFacts, told: str | None) -> None:
    found = Nvfp4Linear().why_not(facts)
    assert found is None if told is None else told in str(found)


def test_a_shape_that_the_gemm_does_not_take_is_left_to_the_definition() -> None:
    weight = stored(48, 48)
    assert "multiples of 8 by 32" in str(Nvfp4Linear().why_unfit(weight))
    assert Nvfp4EmulatedLinear().why_unfit(weight) is None

"""4-bit products by Transformer Engine: the bytes that it gets multiply to what the emulation gives; where it runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear, definition
from h3runtime.backends.linear.nvfp4_te import WORKSPACE_BYTES, EngineFacts, Nvfp4TeLinear, engine_facts, wrapped
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight
from tests.backends.engine_in_its_place import installed
from tests.backends.linears import activations, apart, error, randn


def stored(rows: int = 48, columns: int = 256) -> Nvfp4Weight:
    return nvfp4.quantize(randn(rows, columns, seed=1) * 0.05)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 127, 128, 129])
@pytest.mark.parametrize("given", [None, 2e-3])
def test_products_are_the_emulation_s(rows: int, given: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for alpha's last bits, which may decide a rounding to BF16: FP32 holds these sums exactly, in any order."""
    engine = installed(monkeypatch)
    scale = None if given is None else torch.tensor(given)
    x, weight = activations(rows, outliers=True), replace(stored(), input_scale=scale)
    got = Nvfp4TeLinear().apply(x, weight)
    share, steps = apart(got, Nvfp4EmulatedLinear().apply(x, weight))
    (m, n, k), *more = engine.asked
    assert not more and rows <= m < rows + 16 and (n, k) == (48, 256) and got.shape == (rows, 48)
    assert share < 0.01 and steps <= 1


def test_in_fp32_only_alpha_s_last_bits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    x, weight = activations(129, outliers=True), stored()
    packed = nvfp4.quantize(x)
    left, right = (
        wrapped(one.codes, one.block_scale, one.tensor_scale) for one in (weight, replace(packed, shape=(129, 256)))
    )
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    got = general_gemm(left, right, out_dtype=torch.float32)[0][:129]
    assert error(got, definition(x.float(), weight)) < 1e-6


def test_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    weight = stored()
    made = wrapped(weight.codes, weight.block_scale, weight.tensor_scale)
    assert made.data.data_ptr() == weight.codes.data_ptr() and made.tiled
    assert made.scale.data_ptr() == weight.block_scale.data_ptr()
    assert made.amax.item() == pytest.approx(weight.tensor_scale.item() * 2688, rel=1e-6)


@pytest.mark.parametrize("rows", [1, 17, 129])
def test_what_a_producer_packed_without_rows_of_padding_is_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    x, weight = activations(rows, outliers=True), stored()
    made = nvfp4.quantize(x)
    packed = Nvfp4Rows(made.codes[:rows], made.block_scale, made.tensor_scale, rows, x.dtype)
    assert torch.equal(Nvfp4TeLinear().apply(packed, weight), Nvfp4TeLinear().apply(x, weight))


def test_a_bias_comes_after_and_an_awq_scale_before(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    extras = replace(
        stored(), bias=torch.linspace(-1, 1, 48).bfloat16(), pre_quant_scale=torch.linspace(0.5, 2, 256).bfloat16()
    )
    x = activations(17).reshape(1, 17, 256)
    got, wanted = Nvfp4TeLinear().apply(x, extras), Nvfp4EmulatedLinear().apply(x, extras)
    share, steps = apart(got, wanted)
    assert got.shape == (1, 17, 48) and share < 0.01 and steps <= 1
    assert not Nvfp4TeLinear().apply(torch.zeros(17, 256, dtype=torch.bfloat16), stored()).any()


def test_its_workspace_is_counted_where_it_multiplies() -> None:
    ours, plain = Nvfp4TeLinear(), Nvfp4Linear()
    for rows in (1, 37_810):
        counted, without = (b.call_bytes(stored(), rows, torch.bfloat16) for b in (ours, plain))
        assert counted.held - without.held == WORKSPACE_BYTES == 33_555_456 and counted.before == without.before
        assert ours.came_bytes(stored(), rows).held == WORKSPACE_BYTES
    unfit = stored(48, 48)
    assert ours.call_bytes(unfit, 17, torch.bfloat16) == plain.call_bytes(unfit, 17, torch.bfloat16)


GB10 = LinearFacts("cuda", (12, 1), (13, 0))
THERE = EngineFacts("2.18.0+abc", True)


@pytest.mark.parametrize(
    ("facts", "engine", "told"),
    [
        (LinearFacts("cpu"), THERE, "needs a CUDA device, and this is cpu"),
        (replace(GB10, capability=(9, 0)), THERE, "needs SM 10.0 or newer, and this is SM 9.0"),
        (GB10, EngineFacts(), "(transformer-engine) is not installed"),
        (GB10, EngineFacts("2.11.0", True), "needs Transformer Engine 2.12 or newer, and this is 2.11.0"),
        (GB10, EngineFacts("1.13.0", True), "needs Transformer Engine 2.12 or newer, and this is 1.13.0"),
        (GB10, EngineFacts("", True), "and this is of no known version"),
        (GB10, EngineFacts("2.18.0", False), "was installed without its part for PyTorch"),
        (replace(GB10, cuda=(12, 6)), THERE, "FP4 products need CUDA 12.8 or newer"),
        (replace(GB10, cuda=None), THERE, "FP4 products need CUDA 12.8 or newer"),
        (GB10, THERE, None),
        (replace(GB10, capability=(10, 0), cuda=(12, 8)), EngineFacts("2.12", True), None),
        (replace(GB10, capability=(10, 3)), EngineFacts("3.0.0", True), None),
    ],
)
def test_where_it_runs(facts: LinearFacts, engine: EngineFacts, told: str | None) -> None:
    found = Nvfp4TeLinear().why_not(facts, engine)
    assert found is None if told is None else told in str(found)


@pytest.mark.parametrize("place", [".", "transformer_engine", "transformer_engine/wheel_lib"])
def test_it_is_looked_for_without_an_import(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert engine_facts() == EngineFacts()
    package = tmp_path / "transformer_engine"
    package.mkdir()
    package.joinpath("__init__.py").write_text("raise RuntimeError('nothing of it may be imported')\n")
    assert engine_facts() == EngineFacts("", False)
    about = tmp_path / "transformer_engine-2.18.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.18.0\n")
    assert engine_facts() == EngineFacts("2.18.0", False)
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    folder.joinpath("transformer_engine_torch.cpython-312-aarch64-linux-gnu.so").touch()
    assert engine_facts() == EngineFacts("2.18.0", True)
    assert "transformer_engine" not in sys.modules


def test_a_shape_that_the_gemm_does_not_take_is_left_to_the_definition() -> None:
    assert "multiples of 8 by 32" in str(Nvfp4TeLinear().why_unfit(stored(48, 48)))

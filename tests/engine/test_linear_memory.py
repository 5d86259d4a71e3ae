"""What linear backends say that a call takes, beside what the allocator counts; and bytes that are resident once.

Measured, of what was told: resident_bf16 1.05, dequant and fp32 0.86, fp8 0.74, int8 0.94, nvfp4_emulated 0.84.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from h3runtime.backends.fused.base import GATED, MODULATED
from h3runtime.backends.linear.base import CallBytes, install
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_base import packed_bytes
from h3runtime.backends.linear.select import linear_backends
from h3runtime.engine.linear_memory import coded_linears, linear_calls, packed_linears, resident_bytes
from h3runtime.quant import fp8, nvfp4
from h3runtime.quant.stored import PlainWeight
from tests.backends.linears import CPU, randn
from tests.engine.test_memory_estimate import allocated

ROWS, OUT, WIDTH = 1024, 1536, 512
BACKENDS = {b.name: b for b in linear_backends() if b.why_unavailable(CPU) is None}


@pytest.fixture(scope="module")
def blocks() -> nn.Module:
    return nn.ModuleDict(
        {"blocks": nn.ModuleList(nn.ModuleDict({"mlp": nn.ModuleDict({"fc1": nn.Linear(8, 8)})}) for _ in range(3))}
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_a_call_takes_what_was_told(name: str, blocks: nn.Module) -> None:
    stored, x = nvfp4.quantize(randn(OUT, WIDTH, seed=1)), randn(ROWS, WIDTH, seed=2).bfloat16()
    for index in range(3):
        install(blocks, f"blocks.{index}.mlp.fc1", BACKENDS[name], stored, CPU, switched=True)
    layer = blocks.get_submodule("blocks.1.mlp.fc1")
    layer(x)
    told = linear_calls(blocks, torch.bfloat16)("mlp.fc1", ROWS)
    whole = told.held + max(told.before, 2 * ROWS * OUT)
    assert 0.7 <= allocated(lambda: layer(x)) / whole <= 1.1
    assert linear_calls(blocks, torch.bfloat16, name)("mlp.fc1", ROWS) == told


def nvfp4_model(by: str = "kitchen", *, packs: frozenset[str] = frozenset(), name: str = "triton") -> Any:
    """A transformer of one block in NVFP4, as far as memory depends on it."""
    model = Handing()
    model.producers = SimpleNamespace(gives_codes=True, packs=packs, name=name)
    for place in PLACES:
        backend: Any = Nvfp4Linear(by)
        install(model.blocks, place, backend, nvfp4.quantize(randn(64, 64, seed=3)), CPU, switched=True)
    return model


MADE, BOTH = frozenset({"attn.qkv_proj", "mlp.fc1"}), frozenset({MODULATED, GATED})


def test_nvfp4_is_handed_where_kernels_make_it_and_a_linear_reads_it() -> None:
    assert packed_linears(nvfp4_model(packs=BOTH)) == MADE | {"mlp.fc2"}
    assert packed_linears(nvfp4_model(packs=frozenset({MODULATED}))) == MADE
    assert packed_linears(nvfp4_model(packs=frozenset({GATED}))) == {"mlp.fc2"}
    for without in (nvfp4_model(), nvfp4_model(packs=BOTH, name="cpu")):
        assert packed_linears(without) == frozenset()
    assert packed_linears(nvfp4_model(packs=BOTH), "dequant") == frozenset()
    assert packed_linears(nvfp4_model(packs=BOTH), "nvfp4_emulated") == MADE | {"mlp.fc2"}
    whole = nvfp4_model(packs=BOTH)
    whole.config, whole.mlp_chunks = SimpleNamespace(gate_compress=True), 2
    assert packed_linears(whole) == {"mlp.fc2"}
    scaled = nvfp4_model(packs=BOTH)
    fc2 = scaled.blocks.get_submodule("mlp.fc2")
    fc2.resident = replace(fc2.resident, pre_quant_scale=torch.ones(64))
    assert packed_linears(scaled) == MADE


@pytest.mark.parametrize("by", ["kitchen", "vortex_native"])
def test_what_comes_packed_is_packed_by_no_linear_and_swiglu_s_values_are_copied(by: Any) -> None:
    rows, model = 1000, nvfp4_model(by, packs=BOTH)
    codes = packed_bytes(rows, 64, by)
    calls = linear_calls(model, torch.bfloat16)
    assert calls("mlp.fc1", rows) == calls("attn.out_proj", rows) == CallBytes(codes)
    assert calls("mlp.fc2", rows) == CallBytes(codes, before=2 * 64 * rows)
    calls = linear_calls(model, torch.bfloat16, packed=packed_linears(model))
    assert calls("mlp.fc1", rows) == calls("mlp.fc2", rows) == CallBytes()
    assert calls("attn.out_proj", rows) == CallBytes(codes)
    fc2 = model.blocks.get_submodule("mlp.fc2")
    fc2.resident = replace(fc2.resident, input_scale=torch.tensor(1.0))
    before = 0 if by == "vortex_native" else 2 * 64 * rows
    assert linear_calls(model, torch.bfloat16)("mlp.fc2", rows) == CallBytes(codes, before=before)


STORED = {"bf16": PlainWeight(randn(16, 64, seed=3).bfloat16()), "fp8": fp8.quantize(randn(16, 64, seed=3))}
PLACES = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")


class Handing:
    """A transformer of one block, as far as what is handed over depends on it."""

    def __init__(self, *, gives_codes: bool = True, gate: bool = False, chunks: int = 1, stored: str = "bf16") -> None:
        self.producers = SimpleNamespace(gives_codes=gives_codes)
        self.config, self.mlp_chunks = SimpleNamespace(gate_compress=gate), chunks
        self.blocks = nn.ModuleDict({"attn": nn.Module(), "mlp": nn.Module()})
        for place in PLACES:
            self.blocks.get_submodule(place.partition(".")[0]).add_module(place.partition(".")[2], nn.Linear(8, 8))
            install(self.blocks, place, BACKENDS["fp8"], STORED[stored], CPU, switched=True)

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]:
        return self.blocks.named_modules()


@pytest.mark.parametrize(
    ("model", "asked", "coded"),
    [
        (Handing(), None, {"attn.qkv_proj", "mlp.fc1", "mlp.fc2"}),
        (Handing(), "dequant", set()),
        (Handing(gives_codes=False), None, set()),
        (Handing(gate=True, chunks=2), None, {"mlp.fc2"}),
        (Handing(stored="fp8"), None, set()),
    ],
    ids=["rounded by rows", "another backend", "producers that give none", "whole rows are read", "a stored scale"],
)
def test_codes_are_handed_where_a_linear_multiplies_them(model: Handing, asked: str | None, coded: set[str]) -> None:
    assert coded_linears(model, asked) == coded


def test_bytes_that_layers_share_count_once(blocks: nn.Module) -> None:
    stored = nvfp4.quantize(randn(OUT, WIDTH, seed=1))
    for index in range(3):
        install(blocks, f"blocks.{index}.mlp.fc1", BACKENDS["dequant"], stored, CPU, switched=True)
    once = stored.codes.nbytes + stored.block_scale.nbytes + 4
    assert resident_bytes([blocks]) == resident_bytes([blocks, blocks]) == once

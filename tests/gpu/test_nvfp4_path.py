"""The NVFP4 path as a block and an engine take it: the same bits whoever packs, and whether or not a producer does it.

With the emulated product, which reads what the kernels pack, at H3's size and at 37,810 rows. That the kernels' bytes
are comfy-kitchen's is `test_nvfp4_packer`'s part, that fused ones are the unfused ones' `test_nvfp4_fused`'s; here it
is what comes of them behind the products, behind a static scale, in chunks, beside an adapter, and in replayed steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.fused.base import GATED, MODULATED, NormWeight
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.linear.adapted import Change, LowRank, adapted
from h3runtime.backends.linear.base import CallBytes, install
from h3runtime.backends.linear.facts import linear_facts
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_packing import Nvfp4Form, ScaleBackend, packed, why_no_packer
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.denoiser.blocks import AttentionCall, Block
from h3runtime.denoiser.config import BLOCK_VECTORS, MODALITIES
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.timeline import RowMap
from h3runtime.engine.linear_memory import linear_calls, packed_linears
from h3runtime.engine.made_network import made_network, made_weights
from h3runtime.engine.memory_formulas import Computing, Steps, sampling_bytes
from h3runtime.engine.nvfp4_path import READERS
from h3runtime.engine.resident import ResidentEngine
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.settings import Settings
from tests.gpu.conftest import Note
from tests.gpu.requests import STEPS, Result, run, t2va
from tests.tiny_set import tiny_paths

pytestmark = pytest.mark.gpu

ROWS, BLOCK, SHORT = 37_810, 24, 4_097
BY: tuple[ScaleBackend, ...] = ("kitchen", "vortex", "vortex_native")
SWITCHES = [frozenset(names) for names in ((), (MODULATED,), (GATED,), (MODULATED, GATED))]
LINEARS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
TINY_BLOCKS = 3


@pytest.fixture(scope="module")
def network(cuda: torch.device) -> Dit:
    for by in BY:
        if (why := why_no_packer(by, linear_facts(cuda))) is not None:
            pytest.skip(f"{by}: {why}")
    return one_block(cuda)


def one_block(cuda: torch.device) -> Dit:
    """One block of the published size, its four linears stored in NVFP4."""
    sizes = TransformerSizes()
    weights = made_weights(sizes, cuda, blocks={BLOCK})
    made = made_network(sizes, weights, linear=Nvfp4EmulatedLinear(), device=cuda, dtype=torch.bfloat16)
    for leaf in LINEARS:
        name = f"blocks.{BLOCK}.{leaf}"
        stored = nvfp4.quantize(made.get_submodule(name).resident.weight)
        install(made, name, Nvfp4EmulatedLinear(), stored, cuda, switched=True)
    return made


class Given:
    """A block's input, made once for a number of rows."""

    def __init__(self, network: Dit, rows: int) -> None:
        config, device = network.config, network.blocks[BLOCK].norm1.weight.device
        source = torch.Generator(device).manual_seed(rows)

        def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(generator=source) * scale

        self.h = random(rows, config.hidden)
        self.table = random(2 * MODALITIES, BLOCK_VECTORS * config.hidden, scale=0.1)
        cuts = (0, rows // 9, rows // 3, rows)
        self.rows = RowMap(tuple(zip(cuts, cuts[1:], (1, 0, 4), strict=False)))


def forward(network: Dit, given: Given, packs: frozenset[str]) -> torch.Tensor:
    """Attention is the device's, the same each time."""
    block = network.blocks[BLOCK]
    assert isinstance(block, Block)
    call = AttentionCall(SdpaAttention(), None, 0, TritonProducers(packs))
    with torch.no_grad():
        return block(given.h.clone(), given.table, given.rows, call)


@contextmanager
def taken(network: Dit, by: ScaleBackend, scale: float | None = None) -> Iterator[Nvfp4EmulatedLinear]:
    """All four linears pack by `by`, and by a stored scale if there is one."""
    backend, layers = Nvfp4EmulatedLinear(by), [network.get_submodule(f"blocks.{BLOCK}.{name}") for name in LINEARS]
    before = [(layer.backend, layer.resident) for layer in layers]
    for layer in layers:
        layer.backend = backend
        given = None if scale is None else torch.tensor([scale], device=layer.resident.codes.device)
        layer.resident = replace(layer.resident, input_scale=given)
    yield backend
    for layer, (own, resident) in zip(layers, before, strict=True):
        layer.backend, layer.resident = own, resident


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("scale", [None, 2e-3], ids=["dynamic", "static"])
def test_a_block_has_the_same_bits_whoever_packs(network: Dit, scale: float | None) -> None:
    given = Given(network, ROWS)
    with taken(network, "kitchen", scale):
        want = forward(network, given, frozenset())
    assert torch.isfinite(want).all() and not torch.equal(want, given.h)
    for by, packs in product(BY, SWITCHES):
        with taken(network, by, scale) as backend:
            assert same(forward(network, given, packs), want), (by, sorted(packs))
            came = 2 * (MODULATED in packs) + (GATED in packs)
            assert (backend.packings.came, dict(backend.packings.by)) == (came, {by: 4 - came})


@pytest.mark.parametrize("rows", [1, 15, 17, 127, 129, SHORT])
def test_odd_rows_and_chunks_too(network: Dit, rows: int) -> None:
    given, mlp = Given(network, rows), network.blocks[BLOCK].mlp
    for chunks in (1, 3):
        mlp.chunks = chunks
        with taken(network, "kitchen"):
            want = forward(network, given, frozenset())
        for by in BY:
            with taken(network, by):
                assert same(forward(network, given, SWITCHES[-1]), want), (by, chunks)
    mlp.chunks = 1


@pytest.mark.parametrize("packs", SWITCHES, ids=lambda packs: "+".join(sorted(packs)) or "none")
@pytest.mark.parametrize("by", BY)
def test_a_block_takes_what_is_estimated(network: Dit, note: Note, by: ScaleBackend, packs: frozenset[str]) -> None:
    """Of the allocator's bytes. The emulation's slices are bounds, so that it may be told too much."""
    given, network.producers = Given(network, ROWS), TritonProducers(packs)
    with taken(network, by):
        forward(network, given, packs)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        forward(network, given, packs)
        peak = torch.cuda.max_memory_allocated() - before
    packed_for = packed_linears(network)
    assert packed_for == {place for made in packs for place in READERS[made]}
    calls = linear_calls(network, torch.bfloat16, packed=packed_for)
    how = Computing(torch.bfloat16, False, False, linear=calls, packed=packed_for)
    # What the whole run keeps: without rows, and without the weight that a product decodes for any number of them.
    config, kept = network.config, replace(how, linear=lambda *_: CallBytes())
    run_bytes = sampling_bytes(config, kept, Steps(0, 1, 1, 1, 1)) + 2 * 3 * config.rope_freqs * 2 * ROWS
    told = sampling_bytes(config, how, Steps(ROWS, 1, 1, 1, 1)) - run_bytes
    note(f"{peak / 2**20:.0f} MiB, told {told / 2**20:.0f}")
    assert 0.97 <= told / peak <= 1.15


@pytest.mark.parametrize("leaf", LINEARS)
def test_beside_an_adapter_that_layer_reads_bf16(network: Dit, cuda: torch.device, leaf: str) -> None:
    name, given = f"blocks.{BLOCK}.{leaf}", Given(network, SHORT)
    rows, width = network.get_submodule(name).resident.shape
    source = torch.Generator(cuda).manual_seed(3)
    down, up = (torch.empty(size, device=cuda).normal_(generator=source) * 0.02 for size in ((8, width), (rows, 8)))
    change = Change((LowRank(down.bfloat16(), up.bfloat16(), 1.0, ((0, rows, 0),)),))
    with adapted(network, {name: [(0.7, change)]}), taken_below(network, "vortex_native") as backend:
        want = forward(network, given, frozenset())
        backend.packings.by.clear()
        assert same(forward(network, given, SWITCHES[-1]), want)
        assert backend.packings.came == (3 if leaf == "attn.out_proj" else 2)
    with taken(network, "vortex_native"):
        assert not same(forward(network, given, SWITCHES[-1]), want)


@contextmanager
def taken_below(network: Dit, by: ScaleBackend) -> Iterator[Nvfp4EmulatedLinear]:
    """As `taken`, below an adapter too."""
    backend = Nvfp4EmulatedLinear(by)
    layers = [network.get_submodule(f"blocks.{BLOCK}.{name}") for name in LINEARS]
    own = [getattr(layer, "base", layer) for layer in layers]
    before = [layer.backend for layer in own]
    for layer in own:
        layer.backend = backend
    yield backend
    for layer, then in zip(own, before, strict=True):
        layer.backend = then


@pytest.mark.parametrize("by", BY)
def test_an_activation_of_zeros_gives_zeros(network: Dit, cuda: torch.device, by: ScaleBackend) -> None:
    fc2, producers = network.get_submodule(f"blocks.{BLOCK}.mlp.fc2"), TritonProducers(SWITCHES[-1])
    width = fc2.resident.shape[1]
    with taken(network, by), torch.no_grad():
        apart = fc2(torch.zeros(129, width, device=cuda, dtype=torch.bfloat16))
        halves = torch.zeros(129, 2 * width, device=cuda, dtype=torch.bfloat16)
        fused = fc2(producers.swiglu(halves, codes=Nvfp4Form(None, by)))
        least = torch.full_like(halves, 1e-15)
        few = fc2(producers.swiglu(least.clone(), codes=Nvfp4Form(None, by)))
        want = fc2(TritonProducers().swiglu(least.clone()))
    assert not apart.any() and not fused.any()
    assert same(few, want)


def test_fp32_is_packed_by_the_definition(network: Dit, cuda: torch.device) -> None:
    """No kernel packs it; a producer that is asked to makes it first."""
    block, producers = network.blocks[BLOCK], TritonProducers(SWITCHES[-1])
    x = torch.randn(33, network.config.hidden, generator=torch.Generator(cuda).manual_seed(1), device=cuda)
    table = torch.zeros(1, network.config.hidden, device=cuda)
    norm = NormWeight(block.norm1.weight.float(), block.norm1.eps)
    rows = RowMap(((0, 33, 0),))
    plain = producers.norm_modulate(x, norm, table, table, rows)
    made = producers.norm_modulate(x, norm, table, table, rows, codes=Nvfp4Form(None, "vortex_native"))
    assert isinstance(made, Nvfp4Rows) and isinstance(plain, torch.Tensor) and made.dtype is torch.float32
    want = packed(plain, None, "vortex_native")
    assert torch.equal(made.codes, want.codes) and torch.equal(made.tensor_scale, want.tensor_scale)
    with taken(network, "vortex_native") as backend:
        y = block.attn.qkv_proj(plain)
    assert y.dtype is torch.float32 and dict(backend.packings.by) == {"definition": 1}


def loaded(cuda: torch.device, folder: Path, **switches: Any) -> ResidentEngine:
    settings = Settings(device=str(cuda), data_dir=folder, linear="nvfp4_emulated", **switches, **tiny_paths())
    made = ResidentEngine(settings, warm_up=False)
    made.load(lambda _: None)
    return made


def made_by(cuda: torch.device, folder: Path, **switches: Any) -> tuple[Result, dict[str, Any]]:
    engine = loaded(cuda, folder, **switches)
    found = run(engine, t2va(folder, diagnostics=True))
    facts, diagnostics = engine.facts(), found.clip.diagnostics
    engine.close()
    assert diagnostics is not None and not any("NVFP4" in warning for warning in facts.warnings), facts.warnings
    assert not facts.self_test.failed
    return found, {"facts": facts, **diagnostics}


def test_a_clip_has_the_same_bits_with_every_switch(cuda: torch.device, tmp_path: Path) -> None:
    """Through the self-test, the warnings, the diagnostics and the replayed steps of an engine."""
    both = {"nvfp4_modulate_fusion": True, "nvfp4_swiglu_fusion": True}
    ways: list[dict[str, Any]] = [
        {},
        {"nvfp4_scale_backend": "vortex"},
        {"nvfp4_scale_backend": "vortex_native"},
        {"nvfp4_modulate_fusion": True},
        {"nvfp4_swiglu_fusion": True, "nvfp4_scale_backend": "vortex_native"},
        both,
        {**both, "nvfp4_scale_backend": "vortex_native", "cuda_graphs": "on"},
    ]
    want, calls = None, TINY_BLOCKS * STEPS
    for number, switches in enumerate(ways):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, told = made_by(cuda, folder, self_test="on" if number in (0, 6) else "off", **switches)
        want = want or found
        for name in ("video", "audio"):
            assert torch.equal(getattr(found.latents, name), getattr(want.latents, name)), (switches, name)
        came = calls * (2 * switches.get("nvfp4_modulate_fusion", False) + switches.get("nvfp4_swiglu_fusion", False))
        by = switches.get("nvfp4_scale_backend", "kitchen")
        assert told["linear"]["activations"] == {"packed": {by: 4 * calls - came}, "came_packed": came}, switches
        assert told["fused"]["family"] == "triton"
        assert f"packs by {by}" in told["facts"].linear.why
        if "cuda_graphs" in switches:
            assert told["cuda_graphs"]["replays"] > 0, told["cuda_graphs"]

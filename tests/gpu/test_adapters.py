"""Adapters on an accelerator: the same branches as on the CPU, at the published sizes, beside fused producers and CUDA
graphs; what they cost, and that changing them moves no weight."""

from pathlib import Path

import pytest
import torch

from h3runtime.backends.attention.counting import Counted, Tally
from h3runtime.backends.attention.cudnn_sdpa import CudnnSdpaAttention
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.linear.adapted import AdaptedLinear, Change, LowRank, Weighted, adapted
from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint.lora.binding import bind
from h3runtime.checkpoint.lora.reading import read_bound
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import read_stored
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.core import SamplerSettings
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.recording import addresses
from h3runtime.denoiser.recordings import Recordings
from h3runtime.quant.stored import PlainWeight
from tests.checkpoint.lora.models import PRUNED, model, target, weight_of
from tests.gpu import test_graphs as graphs

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
ROWS, HIDDEN, INNER = 37_810, 5376, 7168
"""Packed rows of the canonical clip, and the published widths (performance.md, dit-contract §1.1)."""


def linear(rows: int, columns: int) -> BackendLinear:
    weight = torch.randn(rows, columns, device=CUDA, dtype=torch.bfloat16) / columns**0.5
    return BackendLinear(DequantLinear(), PlainWeight(weight, None))


def pair(rows: int, columns: int, start: int = 0, rank: int = 128) -> LowRank:
    down = torch.randn(rank, columns, device=CUDA, dtype=torch.bfloat16) / columns**0.5
    up = 0.1 * torch.randn(rows, rank, device=CUDA, dtype=torch.bfloat16)
    return LowRank(down, up, 1.0, ((0, rows, start),))


def test_a_fused_layer_of_the_published_size_is_moved_by_its_three_pairs() -> None:
    torch.manual_seed(0)
    base = linear(3 * INNER, HIDDEN)
    pairs = tuple(pair(INNER, HIDDEN, i * INNER) for i in range(3))
    module = AdaptedLinear(base, [(0.5, Change(pairs))])
    x = torch.randn(512, HIDDEN, device=CUDA, dtype=torch.bfloat16)
    moved = torch.cat([p.up.float() @ p.down.float() for p in pairs])
    wanted = x.float() @ (base.resident.weight.float() + 0.5 * moved).t()
    found = module(x).float()
    assert float((found - wanted).norm() / wanted.norm()) <= 4e-3


def test_branches_cost_little_beside_the_layer() -> None:
    """4 % of the layer's products at rank 128: 3 x 128 x (HIDDEN + INNER) against 3 x HIDDEN x INNER."""
    torch.manual_seed(0)
    base = linear(3 * INNER, HIDDEN)
    module = AdaptedLinear(base, [(1.0, Change(tuple(pair(INNER, HIDDEN, i * INNER) for i in range(3))))])
    x = torch.randn(ROWS, HIDDEN, device=CUDA, dtype=torch.bfloat16)
    assert milliseconds(lambda: module(x)) <= 1.35 * milliseconds(lambda: base(x))


class Uncoded(TritonProducers):
    """Every linear rounds its own input."""

    gives_codes = False


def half_adapted(dit: Dit, strength: float = 0.5) -> dict[str, list[Weighted]]:
    """Every second layer of the blocks' linears."""
    torch.manual_seed(0)
    found: dict[str, list[Weighted]] = {}
    for name, module in list(dit.named_modules())[::-1]:
        if isinstance(module, BackendLinear) and name.startswith("blocks.") and "adaln" not in name:
            rows, columns = module.resident.shape
            if len(found) % 2 == 0:
                found[name] = [(strength, Change((pair(rows, columns, rank=8),)))]
            else:
                found[name] = [(0.0, Change())]
    return found


@pytest.mark.parametrize("codes", [False, True], ids=["bf16", "fp8"])
def test_fused_producers_of_the_other_layers_change_nothing(codes: bool) -> None:
    """Bit for bit: an adapted layer reads what an unfused producer made, its neighbours what a fused one made."""
    dit, asked = graphs.model(codes=codes), SamplerSettings(4, seed=3)
    changes = half_adapted(dit)
    found = []
    for family in (TritonProducers(), Uncoded()):
        dit.producers = family
        with adapted(dit, changes):
            found.append(graphs.run(dit, asked))
        plain = graphs.run(dit, asked)
        assert not graphs.same(found[-1], plain)
    assert graphs.same(*found)


def test_a_recorded_run_with_adapters_is_the_run_and_so_is_the_next_with_others() -> None:
    dit, tally, asked = graphs.model(codes=True), Tally(), SamplerSettings(4, seed=3)
    dit.producers = TritonProducers()
    attention = Counted(CudnnSdpaAttention(), tally)
    store = Recordings("on", graphs.GIB, CUDA)
    where = addresses(dit)
    for strength in (0.5, 0.0, -0.5, 0.5):
        with adapted(dit, half_adapted(dit, strength)):
            wanted = graphs.run(dit, asked, attention)
            assert graphs.same(graphs.run(store.of_run(dit, tally, 4), asked, attention), wanted)
        assert addresses(dit) == where
    assert store.told()["fault"] == "" and store.replays == 16


def milliseconds(call: object, repeats: int = 10) -> float:
    """Median of several, after a warm-up."""
    assert callable(call)
    found = []
    for _ in range(repeats + 2):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop))
    return sorted(found[2:])[repeats // 2]


@pytest.mark.parametrize("layout", ["comfyui_turbo", "diffusers", "diffsynth", "fasth3"])
def test_both_devices_move_weights_as_much(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "adapter.safetensors"
    adapter(layout, PRUNED).write(path)
    found = {}
    for device in (torch.device("cpu"), CUDA):
        source = open_source(path)
        stored = read_stored(source)
        loaded = read_bound(source, bind(stored, target(), path), target(), device)
        source.close()
        changes = {layer: [(1.0, c)] for layer, c in loaded.scaled(scales_of(stored).by_layer).items()}
        network = model()
        for module in network.modules():
            if isinstance(module, BackendLinear):
                module.resident = module.backend.prepare(module.resident, device)
        network.to(device)
        with torch.device(device), adapted(network, changes):
            found[device.type] = {layer: weight_of(network, layer).cpu() for layer in changes}
    for layer, weight in found["cpu"].items():
        torch.testing.assert_close(found["cuda"][layer], weight, rtol=0, atol=2e-6)

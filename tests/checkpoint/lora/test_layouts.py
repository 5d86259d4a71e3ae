"""Every row of checkpoint-formats §6 moves exactly the weights that its file is for, by what its file was made of.

The other way round than `test_merged`, which works out what a made file should do: here the differences come first, and
`published` writes them as each publisher does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from h3runtime.backends.linear.adapted import adapted
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from tests.checkpoint.lora.models import FULL, PRUNED, bound, changes, model, target, weight_of, write
from tests.checkpoint.lora.published import FILES, File, Pair, Tensors, bare, trained_on_pruned, turbo_comfyui

TOLERANCE = 1e-6


@pytest.mark.parametrize("strength", [1.0, 0.6])
@pytest.mark.parametrize("layout", FILES, ids=lambda layout: layout.__name__)
def test_a_layout_moves_the_weights_by_its_differences(
    tmp_path: Path, layout: Callable[[], File], strength: float
) -> None:
    file = layout()
    sizes, truth = file.truth.sizes, file.truth
    path = write(tmp_path / "adapter.safetensors", file.tensors, file.metadata)
    network = model(sizes)
    before = {layer: weight_of(network, layer) for layer in truth.layers}
    fit = bound(path, target(sizes)).fit
    assert (fit.matched, fit.total, fit.skipped, fit.unmatched) == (fit.total, fit.total, (), ())
    found = changes(path, target(sizes), strength, file.alpha)
    assert set(found) == set(truth.layers)
    with adapted(network, found):
        for layer in truth.layers:
            wanted = before[layer].double() + strength * truth.delta(layer)
            apart = float((weight_of(network, layer).double() - wanted).abs().max())
            assert apart <= TOLERANCE * float(wanted.abs().max()), layer
    assert all(torch.equal(weight_of(network, layer), before[layer]) for layer in truth.layers)


@pytest.mark.parametrize(("layout", "sizes"), [(bare, PRUNED), (trained_on_pruned, FULL)], ids=["full's", "pruned's"])
def test_on_the_other_kind_of_transformer_all_but_adaln_is_moved(
    tmp_path: Path, layout: Callable[[], File], sizes: TransformerSizes
) -> None:
    file = layout()
    path = write(tmp_path / "adapter.safetensors", file.tensors)
    fit = bound(path, target(sizes)).fit
    adaln = {layer for layer in file.truth.layers if "adaln" in layer}
    assert len(adaln) == 3 and {layer.removeprefix("diffusion_model.") for layer in fit.skipped} == adaln
    assert fit.matched == fit.total - len(adaln) and fit.unmatched == ()
    found = changes(path, target(sizes), alpha=file.alpha)
    assert set(found) == set(file.truth.layers) - adaln


OUTSIDE = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "time_embedder.proj_in": "time_embedder.linear_1",
    "time_embedder.proj_out": "time_embedder.linear_2",
    "final_layer.adaln_proj.linear": "norm_out.linear",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
}
"""Linears that stand around the blocks, as Diffusers calls them (dit-contract §7.3)."""


@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "diffusers"])
def test_linears_around_the_blocks_are_moved_too(tmp_path: Path, theirs: bool) -> None:
    network, source = model(FULL), torch.Generator().manual_seed(2)
    before = {layer: weight_of(network, layer) for layer in OUTSIDE}
    pairs = {}
    for layer, weight in before.items():
        down = torch.randn(3, weight.shape[1], generator=source)
        pairs[layer] = Pair(layer, down, 0.1 * torch.randn(weight.shape[0], 3, generator=source), 2.0)
    tensors: Tensors = {}
    for layer, pair in pairs.items():
        name = OUTSIDE[layer] if theirs else layer
        tensors |= {f"{name}.lora_A.weight": pair.down, f"{name}.lora_B.weight": pair.up}
        tensors[f"{name}.alpha"] = torch.tensor(6.0)
    with adapted(network, changes(write(tmp_path / "x.safetensors", tensors), target(FULL), 0.5)):
        for layer, pair in pairs.items():
            wanted = before[layer].double() + 0.5 * pair.delta
            apart = float((weight_of(network, layer).double() - wanted).abs().max())
            assert apart <= TOLERANCE * float(wanted.abs().max()), layer
    assert all(torch.equal(weight_of(network, layer), weight) for layer, weight in before.items())


def test_at_strength_nothing_the_network_is_the_very_same(tmp_path: Path) -> None:
    file = turbo_comfyui()
    path = write(tmp_path / "adapter.safetensors", file.tensors, file.metadata)
    network = model()
    modules = list(network.modules())
    with adapted(network, changes(path, target(), 0.0)):
        assert all(one is other for one, other in zip(network.modules(), modules, strict=True))

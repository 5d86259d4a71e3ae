"""Prefixes, endings and whole tensors under every name that public adapters have for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from h3runtime.backends.linear.adapted import adapted
from tests.checkpoint.lora.models import PRUNED, bias_of, changes, model, target, weight_of, write
from tests.checkpoint.lora.published import Tensors, Truth, diffusers_name, our_pairs

TOLERANCE = 1e-6
PREFIXES = (
    "", "base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "transformer_ref.",
    "model.", "lora_unet_", "lora_transformer_",
)  # fmt: skip
"""dit-contract §7.3; of the last two the names are flattened."""
HALVES = (
    ("lora_A.weight", "lora_B.weight"),
    ("lora_down.weight", "lora_up.weight"),
    ("lora_A.default.weight", "lora_B.default.weight"),
    ("lora_A", "lora_B"),
    ("lora_down", "lora_up"),
)


@pytest.mark.parametrize("halves", HALVES, ids=lambda halves: halves[0])
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "diffusers"])
def test_every_prefix_and_every_spelling_means_the_same(
    tmp_path: Path, prefix: str, halves: tuple[str, str], theirs: bool
) -> None:
    truth = Truth(ranks=(4,), scales=(0.5,))
    wanted = ["blocks.1.attn.out_proj", "token_refiner.blocks.0.mlp.fc2"]
    tensors: Tensors = {}
    for layer in wanted:
        (pair,) = truth.of(layer)
        name = diffusers_name(layer, 0) if theirs else layer
        name = prefix + (name.replace(".", "_") if prefix.startswith("lora_") else name)
        tensors |= {f"{name}.{halves[0]}": pair.down, f"{name}.{halves[1]}": pair.up}
        tensors[f"{name}.alpha"] = torch.tensor(2.0)
    network = model()
    before = {layer: weight_of(network, layer) for layer in wanted}
    found = changes(write(tmp_path / "x.safetensors", tensors), target())
    assert set(found) == set(wanted)
    with adapted(network, found):
        for layer in wanted:
            moved = before[layer].double() + truth.delta(layer)
            apart = float((weight_of(network, layer).double() - moved).abs().max())
            assert apart <= TOLERANCE * float(moved.abs().max()), layer


ADALN = "final_layer.adaln_proj.linear"


@pytest.mark.parametrize("weight_end", [".weight", ".set_weight", ".weight.set_weight"])
@pytest.mark.parametrize("bias_end", [".bias", ".set_bias", ".bias.set_weight"])
def test_a_replacement_is_spelled_in_three_ways_each(tmp_path: Path, weight_end: str, bias_end: str) -> None:
    source = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(128, 4, generator=source), torch.randn(128, generator=source)
    others = our_pairs(Truth(ranks=(2,), shared=True))
    path = write(tmp_path / "x.safetensors", others | {ADALN + weight_end: weight, ADALN + bias_end: bias})
    network = model()
    with adapted(network, {ADALN: changes(path, target(), alpha=2.0)[ADALN]}):
        x = torch.randn(5, 4, generator=source)
        assert torch.equal(network.get_submodule(ADALN)(x), torch.nn.functional.linear(x, weight, bias))


def test_complete_pruned_adapters_stack_by_their_distance_from_the_base(tmp_path: Path) -> None:
    """§7.4: current + strength * (new - base), whichever was there before; a pair on the same layer adds to it."""
    source = torch.Generator().manual_seed(1)
    new = [torch.randn(128, 4, generator=source) for _ in range(2)]
    biases = [torch.randn(128, generator=source) for _ in range(2)]
    pair = {f"{ADALN}.lora_A.weight": torch.randn(2, 4, generator=source)}
    pair |= {f"{ADALN}.lora_B.weight": torch.randn(128, 2, generator=source), f"{ADALN}.alpha": torch.tensor(1.0)}
    network, strengths = model(), (0.8, -0.3)
    weight, bias = weight_of(network, ADALN).double(), bias_of(network, ADALN).double()
    stacked, wanted, wanted_bias = [], weight.clone(), bias.clone()
    for index, (w, b, strength) in enumerate(zip(new, biases, strengths, strict=True)):
        tensors = pair | {f"{ADALN}.set_weight": w, f"{ADALN}.set_bias": b}
        stacked += changes(write(tmp_path / f"{index}.safetensors", tensors), target(), strength)[ADALN]
        delta = 0.5 * pair[f"{ADALN}.lora_B.weight"].double() @ pair[f"{ADALN}.lora_A.weight"].double()
        wanted += strength * (w.double() - weight + delta)
        wanted_bias += strength * (b.double() - bias)
    with adapted(network, {ADALN: stacked}):
        found, found_bias = weight_of(network, ADALN).double(), bias_of(network, ADALN).double()
    assert float((found - wanted).abs().max()) <= TOLERANCE * float(wanted.abs().max())
    assert float((found_bias - wanted_bias).abs().max()) <= TOLERANCE * float(wanted_bias.abs().max())


def test_whole_tensors_under_diffusers_names_are_put_on_our_rows(tmp_path: Path) -> None:
    """A difference of to_k is the middle third's; fc1's replacement comes value first, its difference too."""
    source = torch.Generator().manual_seed(1)
    inner, ffn = PRUNED.heads * PRUNED.head_dim, PRUNED.ffn
    key = 0.1 * torch.randn(inner, PRUNED.hidden, generator=source)
    value, gate = (torch.randn(ffn, PRUNED.hidden, generator=source) for _ in range(2))
    theirs = torch.cat([value, gate])
    path = write(
        tmp_path / "x.safetensors",
        {
            "transformer_blocks.0.attn.to_k.diff": key,
            "transformer_blocks.0.ff.net.0.proj.set_weight": theirs,
            "transformer_blocks.1.ff.net.0.proj.diff": 0.1 * theirs,
        },
    )
    network = model()
    before = {layer: weight_of(network, layer) for layer in ("blocks.0.attn.qkv_proj", "blocks.1.mlp.fc1")}
    with adapted(network, changes(path, target())):
        qkv = before["blocks.0.attn.qkv_proj"].clone()
        qkv[inner : 2 * inner] += key
        torch.testing.assert_close(weight_of(network, "blocks.0.attn.qkv_proj"), qkv, rtol=0, atol=TOLERANCE)
        assert torch.equal(weight_of(network, "blocks.0.mlp.fc1"), torch.cat([gate, value]))
        fc1 = before["blocks.1.mlp.fc1"] + 0.1 * torch.cat([gate, value])
        torch.testing.assert_close(weight_of(network, "blocks.1.mlp.fc1"), fc1, rtol=0, atol=TOLERANCE)

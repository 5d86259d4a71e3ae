"""The same files read by diffusers 0.42 (without PEFT, whose sum B A is made here) move the same weights as much.

`MiniMaxH3LoraLoaderMixin.lora_state_dict` turns each layout that it knows into pairs under its own names, folds alphas
of layers in and reads one of the metadata. What those pairs come to, laid onto its own modules, is compared with what
an adapted linear of ours computes. It needs heads of 128 for files whose rows lie head by head.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers.loaders.lora_pipeline import MiniMaxH3LoraLoaderMixin

from h3runtime.backends.linear.adapted import adapted
from h3runtime.checkpoint.renaming import TRANSFORMER_NAMES
from h3runtime.checkpoint.synthetic.adapters import adapter
from tests.checkpoint.lora.models import FULL, changes, model, target, weight_of

SIZES = replace(FULL, head_dim=128)
ALPHA = {"bare": 4.0}
"""Where the file has none diffusers takes alpha = rank, which is what these were made with."""
LEAVES = {"attn.to_out.0": "attn.out_proj", "ff.net.2": "mlp.fc2", "adaln_proj.linear": "adaln_proj.linear"}


def merged(path: Path) -> Mapping[str, torch.Tensor]:
    """Diffusers' module -> what is added to its weight, fp64."""
    tensors, metadata = MiniMaxH3LoraLoaderMixin.lora_state_dict(
        str(path.parent), weight_name=path.name, return_lora_metadata=True, local_files_only=True
    )
    found = {}
    for name, down in tensors.items():
        if name.endswith(".lora_A.weight"):
            up = tensors[name.replace("lora_A", "lora_B")]
            alpha = (metadata or {}).get("transformer.lora_alpha", down.shape[0])
            layer = name.removesuffix(".lora_A.weight").removeprefix("transformer.")
            found[layer] = alpha / down.shape[0] * (up.double() @ down.double())
    return found


def as_ours(theirs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """By our layers: q, k and v one under the other, the gate before the value."""
    found = {TRANSFORMER_NAMES[name]: delta for name, delta in theirs.items() if name in TRANSFORMER_NAMES}
    blocks = {name.partition(mark)[0] for name in theirs for mark in (".attn.", ".ff.", ".adaln") if mark in name}
    for block in blocks:
        ours = block.replace("token_refiner.refiner_blocks", "token_refiner.blocks").replace(
            "transformer_blocks", "blocks"
        )
        if f"{block}.attn.to_q" in theirs:
            found[f"{ours}.attn.qkv_proj"] = torch.cat([theirs[f"{block}.attn.to_{part}"] for part in "qkv"])
        value, gate = theirs[f"{block}.ff.net.0.proj"].chunk(2)
        found[f"{ours}.mlp.fc1"] = torch.cat([gate, value])
        found |= {
            f"{ours}.{to}": theirs[f"{block}.{leaf}"] for leaf, to in LEAVES.items() if f"{block}.{leaf}" in theirs
        }
    return found


@pytest.mark.parametrize("layout", ["comfyui_turbo", "diffusers", "bare", "kohya", "diffsynth", "pruned"])
def test_both_move_every_weight_as_much(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "adapter.safetensors"
    made = adapter(layout, SIZES)
    if layout == "diffusers":
        # Diffusers wants the component's name; ours takes it off.
        made = replace(made, tensors={f"transformer.{name}": tensor for name, tensor in made.tensors.items()})
    made.write(path)
    deltas = as_ours(merged(path))
    network = model(SIZES)
    found = changes(path, target(SIZES), alpha=ALPHA.get(layout))
    assert set(found) == set(deltas)
    before = {layer: weight_of(network, layer) for layer in found}
    with adapted(network, found):
        for layer, delta in deltas.items():
            wanted = before[layer].double() + delta
            apart = (weight_of(network, layer).double() - wanted).abs().max()
            assert float(apart) <= 1e-6 * float(wanted.abs().max()), layer

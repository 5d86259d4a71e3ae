"""Tiny transformers whose every linear is a backend's, and adapters on disk for them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from h3runtime.backends.linear.adapted import Weighted
from h3runtime.backends.linear.dequant import DequantLinear, dense, install_plain
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import load_module
from h3runtime.checkpoint.lora.binding import Binding, Target, bind
from h3runtime.checkpoint.lora.reading import read_bound
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import read_stored
from h3runtime.checkpoint.rules import TRANSFORMER
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, transformer_shapes
from h3runtime.checkpoint.writer import write_file
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from tests.checkpoint import tiny_transformer

PRUNED = TransformerSizes(
    hidden=64, layers=2, refiner_layers=1, heads=2, head_dim=32, ffn=48, channels=4, audio_channels=8,
    text_dim=32, rope_freqs=4, curve=(9, 4), sinusoid=16, time_hidden=24, time_dim=20,
)  # fmt: skip
FULL = replace(PRUNED, curve=None)
CPU = torch.device("cpu")


def target(sizes: TransformerSizes = PRUNED) -> Target:
    return Target(transformer_shapes(sizes), sizes.head_dim)


def model(sizes: TransformerSizes = PRUNED, dtype: torch.dtype = torch.float32) -> Dit:
    """Random fp32 weights, behind the reference backend."""
    made = tiny_transformer.weights(sizes=sizes)
    found = Dit(DitConfig.from_shapes({name: tuple(t.shape) for name, t in made.items()}), dtype=dtype)
    found.load_state_dict(made)
    install_plain(found.requires_grad_(False))
    return found


def stored_as(form: str, path: Path) -> Dit:
    """The same, its blocks' linears in a quantised form."""
    weights = tiny_transformer.weights(sizes=replace(tiny_transformer.SIZES, layers=1, refiner_layers=1))
    write_file(path, tiny_transformer.stored(weights, form))
    with CheckpointFile(path, qkv_order="contiguous") as file:
        with torch.device("meta"):
            found = Dit(DitConfig.from_shapes(file.shapes), dtype=torch.float32)
        load_module(found, file, linear=DequantLinear(), device=CPU, rule=TRANSFORMER)
    return found.requires_grad_(False)


def weight_of(network: Dit, layer: str) -> torch.Tensor:
    """What the layer multiplies with, fp32 [N, K]: of a linear what it makes of unit vectors, else the parameter."""
    module = network.get_submodule(layer)
    if not hasattr(module, "resident"):
        return module.weight.detach().clone()
    resident = module.resident
    columns = dense(resident, torch.float32).shape[1]
    return (module(torch.eye(columns)) - module(torch.zeros(1, columns))).T.contiguous()


def bias_of(network: Dit, layer: str) -> torch.Tensor:
    module = network.get_submodule(layer)
    if not hasattr(module, "resident"):
        return module.bias.detach().clone()
    return module(torch.zeros(1, dense(module.resident, torch.float32).shape[1]))[0]


def bound(path: Path, where: Target) -> Binding:
    source = open_source(path)
    try:
        return bind(read_stored(source), where, path)
    finally:
        source.close()


def changes(path: Path, where: Target, strength: float = 1.0, alpha: float | None = None) -> dict[str, list[Weighted]]:
    """As the engine hands them to `adapted`."""
    source = open_source(path)
    try:
        stored = read_stored(source)
        loaded = read_bound(source, bind(stored, where, path), where, CPU)
    finally:
        source.close()
    assert loaded.not_finite == ()
    scaled = loaded.scaled(scales_of(stored, alpha).by_layer)
    return {layer: [(strength, change)] for layer, change in scaled.items()}


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    write_file(path, tensors, metadata)
    return path

"""A transformer of any sizes with random weights that were made on its device: no file, nothing read.

For what is timed: the published model takes seconds to make where a file of it takes minutes to write and to read. The
numbers live, since time depends on power and power on bits: matrices are normal over the root of their inputs, so that
a layer keeps its input's size, norms lie around 1, biases and tables around 0; each in the dtype of the published BF16
file. They say nothing about pictures, nor about what is sparse or reused.

Several networks may stand on the same weights, each with its own linear backend: what a backend keeps as it is (BF16)
is shared, what it encodes anew (FP8: half the bytes of the blocks' linears) comes on top. Fed by `block_profile` and
the benchmarks of a step; a file is loaded by `checkpoint.load`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from torch import nn

from h3runtime.backends.linear.base import LinearBackend, install
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint.rules import TRANSFORMER
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, transformer_shapes
from h3runtime.checkpoint.synthetic.published import TRANSFORMER_BF16
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.quant.stored import PlainWeight

FREQUENCIES: Final = "rope.inv_freq"
SPREAD: Final = 0.1
"""Of norms around 1 and of biases around 0."""


def made_weights(
    sizes: TransformerSizes, device: torch.device, *, blocks: Collection[int] | None = None, seed: int = 0
) -> dict[str, torch.Tensor]:
    """By the checkpoint's names. blocks: numbers of those that are wanted, and then nothing but these and the rotary
    frequencies is made; None makes all of a model."""
    source = torch.Generator(device).manual_seed(seed)
    shapes = transformer_shapes(sizes)
    wanted = shapes if blocks is None else [name for name in shapes if _is_of(name, blocks)]
    return {name: _made(name, shapes[name], device, source) for name in wanted}


def made_network(
    sizes: TransformerSizes,
    weights: Mapping[str, torch.Tensor],
    *,
    linear: LinearBackend[Any],
    device: torch.device,
    dtype: torch.dtype,
    mlp_chunks: int = 1,
) -> Dit:
    """The network on `weights`, which stay shared with the caller; what isn't among them stays on the meta device.

    linear: of the layers that follow the choice of backend, as `checkpoint.load` has it.
    """
    with torch.device("meta"):
        network = Dit(DitConfig.from_shapes(transformer_shapes(sizes)), dtype=dtype, mlp_chunks=mlp_chunks)
    strange = network.load_state_dict(weights, strict=False, assign=True).unexpected_keys
    assert not strange, f"no such tensors: {strange}"
    for name, part in list(network.named_modules()):
        if isinstance(part, nn.Linear) and not part.weight.is_meta:
            switched = TRANSFORMER.switches(name)
            stored = PlainWeight(part.weight.detach(), None if part.bias is None else part.bias.detach())
            install(network, name, linear if switched else DequantLinear(), stored, device, switched=switched)
    return network.eval().requires_grad_(False)


def _is_of(name: str, blocks: Collection[int]) -> bool:
    parts = name.split(".")
    return name == FREQUENCIES or (parts[0] == "blocks" and int(parts[1]) in blocks)


def _made(name: str, shape: tuple[int, ...], device: torch.device, source: torch.Generator) -> torch.Tensor:
    dtype = TRANSFORMER_BF16.dtype_of(name)
    if name == FREQUENCIES:
        return 10_000.0 ** (-torch.arange(shape[0], dtype=dtype, device=device) / shape[0])
    value = torch.empty(shape, dtype=dtype, device=device).normal_(generator=source)
    if len(shape) > 1:
        return value.mul_(math.prod(shape[1:]) ** -0.5)
    return value.mul_(SPREAD).add_(1.0 if "norm" in name else 0.0)

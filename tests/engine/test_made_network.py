"""Networks of random weights that no file holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.backends.linear.resident import ResidentBf16Linear
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, transformer_shapes
from h3runtime.checkpoint.synthetic.published import TRANSFORMER_BF16
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.made_network import made_network, made_weights

CPU = torch.device("cpu")
SIZES = TransformerSizes(
    hidden=64,
    layers=3,
    refiner_layers=1,
    heads=2,
    head_dim=32,
    ffn=96,
    text_dim=48,
    rope_freqs=4,
    sinusoid=16,
    time_hidden=32,
    time_dim=24,
)


def network(sizes: TransformerSizes, weights: dict[str, torch.Tensor], linear=None) -> Dit:
    return made_network(
        sizes, weights, linear=linear or ResidentBf16Linear(), device=CPU, dtype=torch.bfloat16, mlp_chunks=2
    )


@pytest.mark.parametrize("curve", [None, (33, 5)], ids=["full", "pruned"])
def test_it_makes_every_tensor_of_a_published_bf16_file(curve: tuple[int, int] | None) -> None:
    sizes = replace(SIZES, curve=curve)
    weights = made_weights(sizes, CPU)
    shapes = transformer_shapes(sizes)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == shapes
    assert all(tensor.dtype == TRANSFORMER_BF16.dtype_of(name) for name, tensor in weights.items())
    fc1, norm = weights["blocks.1.mlp.fc1.weight"].float(), weights["blocks.0.norm1.weight"].float()
    assert float(fc1.std() * 64**0.5) == pytest.approx(1, rel=0.05)
    assert float(norm.mean()) == pytest.approx(1, rel=0.05) and float(norm.std()) == pytest.approx(0.1, rel=0.4)
    assert weights["rope.inv_freq"].tolist() == pytest.approx([1, 0.1, 0.01, 0.001])
    assert torch.equal(weights["blocks.2.mlp.fc2.weight"], made_weights(sizes, CPU)["blocks.2.mlp.fc2.weight"])


def test_networks_share_what_their_backends_keep() -> None:
    weights = made_weights(replace(SIZES, curve=None), CPU)
    wide, narrow = (network(replace(SIZES, curve=None), weights, one) for one in (ResidentBf16Linear(), Fp8Linear()))
    stored = weights["blocks.0.attn.qkv_proj.weight"].data_ptr()
    assert wide.blocks[0].attn.qkv_proj.resident.weight.data_ptr() == stored
    assert narrow.blocks[0].attn.qkv_proj.resident.codes.dtype is torch.float8_e4m3fn
    for one in (wide, narrow):
        adaln = one.blocks[2].adaln_proj.linear
        assert adaln.resident.weight.data_ptr() == weights["blocks.2.adaln_proj.linear.weight"].data_ptr()
        assert not adaln.switched and one.blocks[1].mlp.fc2.switched and one.mlp_chunks == 2


def test_blocks_that_nobody_asked_for_take_no_memory() -> None:
    weights = made_weights(SIZES, CPU, blocks=(0, 2))
    assert {name.split(".")[1] for name in weights if name.startswith("blocks.")} == {"0", "2"}
    found = network(SIZES, weights)
    assert isinstance(found.blocks[2].mlp.fc1, BackendLinear) and not isinstance(found.blocks[1].mlp.fc1, BackendLinear)
    assert found.blocks[1].norm1.weight.is_meta and not found.rope.inv_freq.is_meta


def test_a_tensor_of_another_model_is_a_fault() -> None:
    with pytest.raises(AssertionError, match=r"blocks\.9"):
        network(SIZES, {"blocks.9.norm1.weight": torch.ones(64)})

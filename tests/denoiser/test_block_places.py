"""An attention backend that asks is told which block calls it, and gets that block's gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.base import Place
from h3runtime.backends.attention.counting import Counted, Tally
from h3runtime.backends.attention.probe import relative_error
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.sparse.sla_topk import SlaTopkAttention
from h3runtime.backends.attention.sparse.vsa import VsaAttention
from h3runtime.core import PackedLayout
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.stepped import SteppedAttention
from tests.denoiser import tiny

GATED = replace(tiny.CONFIG, gate_compress=True)
SIGMA = 0.7


class Asking(SdpaAttention):
    """Notes where it was called, and with what."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Place]] = []
        self.values: list[torch.Tensor] = []
        self.gates: list[torch.Tensor] = []

    def attend_at(self, q: Any, k: Any, v: Any, *, layout: Any, step: int, place: Place) -> torch.Tensor:
        self.seen.append((step, place))
        self.values.append(v.clone())
        if place.gate is not None:
            self.gates.append(place.gate())
        return super().attend(q, k, v, layout=layout, step=step)


@pytest.fixture
def packed() -> PackedLayout:
    """4 x 5 x 7 rows of pictures in 4 cubes."""
    return tiny.layout(height=10, width=14, frames=4)


def forward(model: Dit, packed: PackedLayout, attention: Any, step: int = 1) -> torch.Tensor:
    prepared = tiny.prepare(model, packed, attention=attention)
    return torch.cat([x.flatten() for x in model(prepared, *tiny.latents(packed), SIGMA, step=step)])


def test_blocks_are_numbered_through_whatever_wraps_a_backend(packed: PackedLayout) -> None:
    asking, model = Asking(), tiny.dit()
    for step in range(2):
        forward(model, packed, SteppedAttention("two", [Counted(asking, Tally())] * 2), step)
    assert [(step, place.block, place.gate) for step, place in asking.seen] == [
        (step, block, None) for step in range(2) for block in range(model.config.layers)
    ]


def test_a_gate_is_made_of_what_q_k_and_v_are_made_of(packed: PackedLayout) -> None:
    """Where its weight is v's, it is v."""
    weights = tiny.weights(GATED)
    for index in range(GATED.layers):
        name = f"blocks.{index}.attn"
        weights[f"{name}.to_gate_compress.weight"] = weights[f"{name}.qkv_proj.weight"][-GATED.inner :]
    asking = Asking()
    forward(tiny.build(weights, torch.float32, GATED), packed, asking)
    assert len(asking.gates) == GATED.layers
    for gate, value in zip(asking.gates, asking.values, strict=True):
        assert gate.shape == value.shape and relative_error(gate, value) < 1e-6


def test_a_gate_of_zeros_leaves_vsa_its_fine_branch(packed: PackedLayout) -> None:
    weights, tally = tiny.weights(GATED), Tally()
    everything = VsaAttention("vsa", 1.0, SdpaAttention(), tally)
    gated = forward(tiny.build(weights, torch.float32, GATED), packed, everything)
    for name in weights:
        if "to_gate_compress" in name:
            weights[name] = torch.zeros_like(weights[name])
    model = tiny.build(weights, torch.float32, GATED)
    dense = forward(model, packed, SdpaAttention())
    assert relative_error(forward(model, packed, everything), dense) < 1e-5 < 1e-2 < relative_error(gated, dense)
    assert tally.dispatches == {"vsa": 2 * GATED.layers} and not tally.fallbacks


def test_the_first_block_stays_dense(packed: PackedLayout) -> None:
    tally, model = Tally(), tiny.dit(dtype=torch.float32)
    sparse = SlaTopkAttention("sla", 0.5, SdpaAttention(), tally)
    assert relative_error(forward(model, packed, sparse), forward(model, packed, SdpaAttention())) > 1e-4
    assert tally.dispatches == {"sla": model.config.layers - 1}
    assert [(f.why, count) for f, count in tally.fallbacks.items()] == [("one of the first 1 blocks", 1)]

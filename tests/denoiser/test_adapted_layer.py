"""An adapter on one layer: that layer's input is made unfused, its neighbours' as ever, and afterwards its own too."""

import pytest

from h3runtime.backends.linear.adapted import adapted, is_adapted
from tests.backends.test_fused import TORCH, Coding, change_of, forward, fp8_model, same_bits

FUSED = {"attn.qkv_proj": "modulated", "attn.out_proj": "encoded", "mlp.fc1": "modulated", "mlp.fc2": "activated"}
"""In the order of a block: who rounds what each linear reads. The attention's result is rounded by itself anyway."""


@pytest.mark.parametrize("leaf", FUSED)
def test_an_active_adapter_turns_the_fused_producer_of_its_own_layer_off(leaf: str) -> None:
    model, name = fp8_model(), f"blocks.0.{leaf}"
    assert len(model.blocks) == 2
    change = change_of(model.get_submodule(name), False)
    plain = forward(model, coding := Coding())
    assert coding.handed == [*FUSED.values()] * 2
    with adapted(model, {name: [(0.5, change)]}):
        assert [layer for layer, part in model.named_modules() if is_adapted(part)] == [name]
        moved = forward(model, coding := Coding())
        assert coding.handed == [*(FUSED | {leaf: "encoded"}).values(), *FUSED.values()]
        assert same_bits(moved, forward(model, TORCH)) and not same_bits(moved, plain)
    assert same_bits(forward(model, coding := Coding()), plain)
    assert coding.handed == [*FUSED.values()] * 2


def test_an_adapter_of_strength_nothing_turns_nothing_off() -> None:
    model = fp8_model()
    change = change_of(model.blocks[0].mlp.fc1, False)
    plain = forward(model, Coding())
    with adapted(model, {"blocks.0.mlp.fc1": [(0.0, change)]}):
        assert same_bits(forward(model, coding := Coding()), plain)
        assert coding.handed == [*FUSED.values()] * 2

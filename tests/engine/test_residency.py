"""Where the text encoder's weights are: what is refused where, and the bytes of each stage."""

import pytest
import torch

from h3runtime.engine.residency import (
    ALIGNMENT,
    RESIDENCIES,
    HeldWeights,
    Units,
    held_weights,
    require_legal,
    text_moved,
    tower_moved,
    units_of,
)
from h3runtime.errors import SettingsError
from h3runtime.settings import Settings

UNITS = Units(embedding=40, tower=30, layers=(7, 7, 9, 7))
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_the_names_are_the_settings() -> None:
    assert [Settings(residency=name).residency for name in RESIDENCIES] == list(RESIDENCIES)


def test_all_holds_everything_all_the_time() -> None:
    assert held_weights("all", UNITS, 1000) == HeldWeights(1100, 1100, 1100)
    assert text_moved("all", UNITS) == tower_moved("all", UNITS) == 0


def test_from_the_host_two_neighbours_are_there_at_once() -> None:
    assert (text_moved("encoder_host", UNITS), tower_moved("encoder_host", UNITS)) == (47, 70)
    assert held_weights("encoder_host", UNITS, 1000) == HeldWeights(1070, 1000, 1000, host=100)
    layers = Units(embedding=1, tower=1, layers=(7, 7, 9, 7))
    assert text_moved("encoder_host", layers) == 16


def test_from_disk_one_is_there_and_nothing_on_the_host() -> None:
    assert (text_moved("encoder_disk", UNITS), tower_moved("encoder_disk", UNITS)) == (40, 40)
    assert held_weights("encoder_disk", UNITS, 1000) == HeldWeights(1040, 1000, 1000, host=0)


def test_units_are_told_by_name_and_each_tensor_begins_aligned() -> None:
    sizes = {
        "model.embed_tokens.weight": 3 * ALIGNMENT,
        "model.layers.0.mlp.up_proj.weight": 1,
        "model.layers.10.input_layernorm.weight": ALIGNMENT + 1,
        "model.layers.1.input_layernorm.weight": ALIGNMENT,
        "model.layers.0.input_layernorm.weight": ALIGNMENT,
        "visual.pos_embed.weight": 2,
    }
    assert units_of(sizes) == Units(3 * ALIGNMENT, ALIGNMENT, (2 * ALIGNMENT, ALIGNMENT, 2 * ALIGNMENT))


@pytest.mark.parametrize("residency", RESIDENCIES[1:])
@pytest.mark.parametrize(("device", "is_integrated", "why"), [(CUDA, True, "counts twice"), (CPU, False, "on the CPU")])
def test_moving_is_refused_where_memory_is_one(
    residency: str, device: torch.device, is_integrated: bool, why: str
) -> None:
    with pytest.raises(SettingsError, match=f"H3_RESIDENCY: {residency} .*{why}") as raised:
        require_legal(residency, device, is_integrated=is_integrated)
    (offence,) = raised.value.offences
    assert (offence.field, offence.legal) == ("H3_RESIDENCY", "all")


def test_what_is_legal_is_let_be() -> None:
    for residency in RESIDENCIES:
        require_legal(residency, CUDA, is_integrated=False)
    require_legal("all", CUDA, is_integrated=True)
    require_legal("all", CPU, is_integrated=False)

"""Which backends loaded weights serve, and what a model computes with once it was given another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.base import install
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.select import choose_linear, linear_backends, spare_linear, why_auto
from h3runtime.backends.linear.switching import LoadedLinears, told_layers, use
from h3runtime.errors import BackendUnavailable, InvalidRequest
from tests.backends.linears import COLUMNS, CPU, ROWS, activations, stored_forms

BACKENDS = {backend.name: backend for backend in linear_backends()}
FORMS = stored_forms()


def model_of(name: str, *forms: str) -> nn.Module:
    """Layers that follow the choice, and one that doesn't."""
    model = nn.ModuleDict({form: nn.Linear(COLUMNS, ROWS) for form in (*forms, "other")})
    for form in forms:
        install(model, form, BACKENDS[name], FORMS[form], CPU, switched=True)
    install(model, "other", DequantLinear(), FORMS["bf16"], CPU)
    return model


def loaded(name: str, *forms: str) -> LoadedLinears:
    return LoadedLinears(BACKENDS[name], "asked for", linear_backends(), [model_of(name, *forms)], CPU)


@pytest.mark.parametrize(
    ("name", "forms", "served"),
    [
        ("dequant", ("nvfp4",), {"dequant", "nvfp4_emulated"}),
        ("nvfp4_emulated", ("nvfp4", "int8"), {"dequant", "nvfp4_emulated"}),
        ("dequant", ("int8", "int8_convrot_256"), {"dequant", "int8"}),
        ("dequant", ("fp8",), {"dequant", "fp8"}),
        ("dequant", ("fp8", "int8"), {"dequant"}),
        ("dequant", ("bf16",), {"dequant", "resident_bf16", "fp32"}),
        ("resident_bf16", ("nvfp4", "bf16"), {"dequant", "resident_bf16", "fp32"}),
        ("fp8", ("nvfp4",), {"fp8"}),
        ("fp8", ("fp8",), {"fp8", "dequant"}),
        ("int8", ("bf16",), {"int8"}),
        ("int8", ("int8_convrot_64",), {"int8", "dequant"}),
    ],
)
def test_weights_serve_all_that_reads_them_as_they_are(name: str, forms: tuple[str, ...], served: set[str]) -> None:
    choice = loaded(name, *forms).choice()
    assert set(choice.available) == served and choice.default == name
    assert choice.available[0] in served and choice.unavailable.keys() == BACKENDS.keys() - served
    assert "needs a CUDA device" in choice.unavailable["nvfp4"] and "never run" in choice.notes["nvfp4_te"]


def test_a_wish_is_served_or_refused_with_the_reason() -> None:
    linears = loaded("dequant", "nvfp4")
    assert linears.named(None) is linears.chosen and linears.named("nvfp4_emulated").name == "nvfp4_emulated"
    with pytest.raises(
        BackendUnavailable, match="the weights were loaded for dequant; a server started with linear fp8"
    ):
        linears.named("fp8")
    with pytest.raises(InvalidRequest, match="no backend 'fp4'"):
        linears.named("fp4")
    with pytest.raises(
        BackendUnavailable, match=r"it has no layer among the loaded weights.* stored as int8_tensorwise"
    ):
        loaded("dequant", "int8").named("nvfp4_emulated")


def test_a_model_multiplies_by_what_it_was_given_last() -> None:
    model, x = model_of("dequant", "nvfp4"), activations(17)
    exact, other = model["nvfp4"](x), model["other"](x)
    use(model, BACKENDS["nvfp4_emulated"])
    assert not torch.equal(model["nvfp4"](x), exact) and torch.equal(model["other"](x), other)
    assert told_layers(model)["backend"] == "nvfp4_emulated"
    use(model, BACKENDS["dequant"])
    assert torch.equal(model["nvfp4"](x), exact)


def test_layers_are_told_with_what_encoding_cost_and_why_some_were_left() -> None:
    told = told_layers(model_of("fp8", "nvfp4", "fp8"))
    assert told["layers"] == 2 and told["left_to_dequant"] == {}
    assert told["weight_errors"].keys() == {"nvfp4"} and 0.02 < told["weight_errors"]["nvfp4"] < 0.04
    told = told_layers(model_of("nvfp4_emulated", "nvfp4", "int8"))
    assert told["left_to_dequant"] == {"it is stored as int8_tensorwise": 1} and told["weight_errors"] == {}


def test_auto_is_exact_has_a_spare_and_tells_a_slow_cpu() -> None:
    chosen, why = choose_linear("auto", CPU)
    assert chosen.grade == "reference" and why.startswith("auto: BF16 GEMM")
    spare = spare_linear("auto")
    assert spare is not None and spare.name == "dequant" and spare_linear("fp8") is None
    assert "fp32 is faster" in why_auto(LinearFacts("cpu", bf16_units=False))
    assert "fp32" not in why_auto(LinearFacts("cuda", (9, 0)))

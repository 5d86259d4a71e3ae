"""Products are held to their definition; NVFP4's to that of the bytes that are packed on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from h3runtime.backends.linear import nvfp4_base
from h3runtime.backends.linear.base import BackendLinear, LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear, definition
from h3runtime.backends.linear.resident import ResidentBf16Linear
from h3runtime.core import KernelCheck
from h3runtime.engine.self_test import linear
from h3runtime.engine.self_test.check import ask, worst_row
from h3runtime.engine.self_test.linear import linear_checks
from h3runtime.quant import nvfp4, nvfp4_cuda
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import PlainWeight

CPU = torch.device("cpu")
WIDTH = 512


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


STORED = nvfp4.quantize(randn(96, WIDTH))
PLAIN = PlainWeight(randn(96, WIDTH).bfloat16(), randn(96, seed=1).bfloat16())


def off_by_an_ulp(a: torch.Tensor) -> torch.Tensor:
    """As a GPU's reciprocal may be."""
    return torch.reciprocal(a) * (1 + 2.0**-23)


def as_a_gpu(x: torch.Tensor, stored: torch.Tensor | None, by: str = "kitchen") -> Nvfp4Rows:  # noqa: ARG001
    scale = nvfp4.activation_scale(x) if stored is None else stored
    return Nvfp4Rows(*nvfp4_cuda.pack(x, scale, off_by_an_ulp), scale, x.shape[0], x.dtype)


class Blackwell(Nvfp4LinearBase):
    """As if a GPU multiplied; spoil: what it does to a product."""

    name = "nvfp4"

    def __init__(self, spoil: Callable[[torch.Tensor], Any] = lambda _: None) -> None:
        super().__init__()
        self._spoil = spoil

    def product(self, rows: Nvfp4Rows, weight: Any) -> torch.Tensor:
        y = Nvfp4EmulatedLinear().product(rows, weight)
        self._spoil(y)
        return y


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs as one does, and isn't the definition."""
    monkeypatch.setattr(nvfp4_base, "packed", as_a_gpu)
    monkeypatch.setattr(linear, "packed", as_a_gpu)
    monkeypatch.setattr(linear, "_is_definition", lambda *_: False)


def asked(backend: LinearBackend[Any], stored: Any) -> KernelCheck:
    layers = [("mlp.fc1", BackendLinear(DequantLinear(), stored))]
    (check,) = linear_checks(backend, layers, CPU)
    return ask(check, CPU)


@pytest.mark.usefixtures("gpu")
def test_other_codes_by_a_reciprocal_are_no_fault_of_a_product() -> None:
    """By the definition's own rounding of x a right product would be off."""
    x = randn(129, WIDTH, seed=129).bfloat16()
    x[0, 0] = 7.875
    got = Blackwell().product(as_a_gpu(x, None), STORED)
    assert worst_row(got, definition(x, STORED)) > 5 * linear.TOLERANCE
    assert worst_row(got, linear.of_packed(Blackwell(), x, STORED, STORED)) == 0
    found = asked(Blackwell(), STORED)
    assert found.passed and found.error is not None and found.error < 0.003


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y.mul_(1.02),
        lambda y: y[-1:].zero_(),
        lambda y: y[:, -8:].mul_(2),
        lambda y: y[128:].fill_(float("nan")),
    ],
)
def test_a_product_that_is_wrong_is_found(spoil: Callable[[torch.Tensor], Any]) -> None:
    assert not asked(Blackwell(spoil), STORED).passed


def test_exact_products_are_held_to_the_decoded_weight() -> None:
    for stored in (STORED, PLAIN):
        found = asked(DequantLinear(), stored)
        assert found.passed and found.asked == "mlp.fc1 [96, 512] by 1, 17, 129 rows"
    assert asked(ResidentBf16Linear(), PLAIN).passed


def test_a_definition_is_not_asked() -> None:
    layers = [("mlp.fc1", BackendLinear(DequantLinear(), STORED))]
    assert list(linear_checks(Nvfp4EmulatedLinear(), layers, CPU)) == []
    assert list(linear_checks(Blackwell(), layers, CPU)) == []

"""A packer that gives other bytes is found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4_packing import ScaleBackend
from h3runtime.core import KernelCheck
from h3runtime.engine.self_test import packing
from h3runtime.engine.self_test.check import ask
from h3runtime.engine.self_test.packing import packing_checks
from h3runtime.quant import nvfp4, nvfp4_cuda
from h3runtime.quant.nvfp4_rows import Nvfp4Rows

CPU = torch.device("cpu")
SPARK = LinearFacts("cuda", (12, 1), (13, 0), "0.2.40", True)
BARE = LinearFacts("cuda", (12, 1), (13, 0))


def as_a_gpu(x: torch.Tensor, stored: torch.Tensor | None, by: ScaleBackend) -> Nvfp4Rows:  # noqa: ARG001
    scale = nvfp4.activation_scale(x) if stored is None else stored
    return Nvfp4Rows(*nvfp4_cuda.pack(x, scale), scale, x.shape[0], x.dtype)


def asked(by: ScaleBackend, facts: LinearFacts = SPARK) -> list[KernelCheck]:
    return [ask(check, CPU) for check in packing_checks(by, 256, facts, CPU)]


def test_the_same_bytes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "packed", as_a_gpu)
    assert [check.passed for check in asked("vortex")] == [True, True]
    assert [check.asked.rpartition(" ")[2] for check in asked("vortex_native")] == ["definition", "comfy-kitchen"]
    assert len(asked("kitchen")) == len(asked("vortex_native", BARE)) == 1


def test_a_packer_that_divides_is_told_from_one_that_multiplies() -> None:
    """comfy-kitchen's eager path, which this CPU takes, is not what its CUDA packer makes."""
    (found,) = asked("kitchen")
    assert found.error is not None and 0 < found.error < 0.01


@pytest.mark.parametrize("name", ["codes", "block_scale"])
def test_a_byte_that_differs_from_the_librarys_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def spoilt(x: torch.Tensor, stored: torch.Tensor | None, by: ScaleBackend) -> Nvfp4Rows:
        made = as_a_gpu(x, stored, by)
        if by == "vortex_native":
            (made.codes if name == "codes" else made.block_scale).view(torch.uint8).view(-1)[0] ^= 1
        return made

    monkeypatch.setattr(packing, "packed", spoilt)
    assert [check.passed for check in asked("vortex_native")] == [True, False]


def test_nibbles_the_other_way_round_and_scales_in_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(x: torch.Tensor, stored: torch.Tensor | None, by: ScaleBackend) -> Nvfp4Rows:
        made = as_a_gpu(x, stored, by)
        return replace(made, codes=(made.codes << 4) | (made.codes >> 4))

    def untiled(x: torch.Tensor, stored: torch.Tensor | None, by: ScaleBackend) -> Nvfp4Rows:
        made = as_a_gpu(x, stored, by)
        return replace(made, block_scale=made.block_scale.view(torch.uint8).roll(1, 0).view(made.block_scale.dtype))

    for spoilt in (swapped, untiled):
        monkeypatch.setattr(packing, "packed", spoilt)
        assert not asked("kitchen")[0].passed


def test_another_tensor_scale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: torch.Tensor, stored: torch.Tensor | None, by: ScaleBackend) -> Nvfp4Rows:  # noqa: ARG001
        scale = 2 * nvfp4.activation_scale(x) if stored is None else stored
        return Nvfp4Rows(*nvfp4_cuda.pack(x, scale), scale, x.shape[0], x.dtype)

    monkeypatch.setattr(packing, "packed", doubled)
    (found,) = asked("kitchen")
    assert found.error == 1.0 and not found.passed

"""Producers that end in NVFP4 give what their own values are when they are packed; others are found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from h3runtime.backends.fused.base import GATED, MODULATED, Activation, Form
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, transformer_shapes
from h3runtime.core import KernelCheck
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine.self_test.check import ask
from h3runtime.engine.self_test.fused import fused_checks
from h3runtime.quant.nvfp4_rows import Nvfp4Rows

CPU = torch.device("cpu")
SIZES = TransformerSizes(hidden=256, layers=1, heads=2, ffn=512, text_dim=64)
CONFIG = DitConfig.from_shapes(transformer_shapes(SIZES))


class Own(TorchProducers):
    """Not the definition itself, and so it is asked."""

    name = "own"


class FlipsAByte(Own):
    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        made = super().swiglu(x, codes=codes)
        if isinstance(made, Nvfp4Rows):
            made.codes[-1, -1] ^= 1
        return made


class OtherScale(Own):
    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        made = super().swiglu(x, codes=codes)
        return replace(made, tensor_scale=1.01 * made.tensor_scale) if isinstance(made, Nvfp4Rows) else made


def asked(producers: TorchProducers) -> list[KernelCheck]:
    return [ask(check, CPU) for check in fused_checks(producers, CONFIG, CPU)]


def test_the_definition_is_not_asked() -> None:
    assert asked(TorchProducers(frozenset({GATED}))) == []


def test_what_packs_is_asked_byte_for_byte() -> None:
    plain, packs = asked(Own(frozenset({MODULATED, GATED})))
    assert plain.passed and packs.passed and packs.error == packs.tolerance == 0
    assert packs.asked == "share of other bytes of 257 rows of 256 and 512, in NVFP4"
    assert len(asked(Own())) == 1


@pytest.mark.parametrize("family", [FlipsAByte, OtherScale])
def test_another_byte_is_found_where_it_is_packed(family: type[TorchProducers]) -> None:
    assert [check.passed for check in asked(family(frozenset({GATED})))] == [True, False]
    assert [check.passed for check in asked(family(frozenset({MODULATED})))] == [True, True]

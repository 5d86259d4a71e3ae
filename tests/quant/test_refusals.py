"""What no format can hold."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from h3runtime.quant import asym_w4a8, awq_w4a16, convrot_w4a4, fp8, int8, mxfp8, nvfp4
from tests.quant.samples import normal_weight

QUANTISE: dict[str, Callable[[torch.Tensor], Any]] = {
    "nvfp4": nvfp4.quantize,
    "int8": int8.quantize,
    "int8 convrot": partial(int8.quantize, convrot=16),
    "fp8": fp8.quantize,
    "mxfp8": mxfp8.quantize,
    "convrot_w4a4": convrot_w4a4.quantize,
    "asym_w4a8": asym_w4a8.quantize,
    "awq_w4a16": awq_w4a16.quantize,
}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", QUANTISE)
def test_a_non_finite_weight_is_refused(name: str, value: float) -> None:
    weight = normal_weight(3, 256)
    QUANTISE[name](weight)
    weight[2, 5] = value
    with pytest.raises(ValueError, match="non-finite"):
        QUANTISE[name](weight)

"""Every W4A4 backend on the accelerator: on Blackwell beside the emulation, elsewhere it says what it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.gemm import activations
from h3runtime.backends.linear.dequant import moved
from h3runtime.backends.linear.nvfp4_base import FORMAT
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.select import linear_backends
from h3runtime.quant import nvfp4
from tests.backends.linears import apart, randn

pytestmark = pytest.mark.gpu

M = (1, 15, 16, 17, 127, 128, 129, 4096, 37_810)
BLACKWELL = (10, 0)
PRODUCTS = [backend.name for backend in linear_backends() if backend.only == FORMAT]


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name != "nvfp4_emulated"])
@pytest.mark.parametrize("given", [None, 3e-3])
def test_it_is_the_emulation_or_says_what_it_needs(
    cuda: torch.device, name: str, given: float | None, note: Any
) -> None:
    """A step of BF16 where FP32 sums of another order fall on the other side of a rounding."""
    backend = next(one for one in linear_backends() if one.name == name)
    why, capability = backend.why_unavailable(cuda), torch.cuda.get_device_capability(cuda)
    if why is not None:
        note(why)
        named = "SM {}.{}".format(*capability)
        assert named in why if capability < BLACKWELL else named not in why
        return
    scale = None if given is None else torch.tensor(given)
    stored = replace(nvfp4.quantize(randn(768, 1024, seed=1) * 0.05), input_scale=scale)
    resident, wanted = backend.prepare(stored, cuda), moved(stored, cuda)
    for count in M:
        x = activations(count, 1024, cuda)
        share, steps = apart(backend.apply(x, resident), Nvfp4EmulatedLinear().apply(x, wanted))
        note(f"{count} rows: {share:.2%} differ, by {steps} at most")
        assert share < 0.02 and steps <= 1

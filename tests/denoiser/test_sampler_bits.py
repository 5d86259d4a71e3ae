"""The recorded bf16 runs, call by call, bit for bit, in a process held to the matrix kernels that recorded them.

Each network call starts from the recorded state, with its clocks in fp32 where the recording version had them so. What
still differs is fp32 products (patch projections, AdaLN of the curve form, heads): they round by the maker of the CPU,
and now and then that flips a bf16 rounding. With other kernels of the same library the same calls come out equal and
others don't. Updates need no kernel and are compared in tests/parity. Where such kernels can't be had, the stated
bounds are checked instead.
"""

import importlib
import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.denoiser import recorder
from tests.parity.dit_case import clocks_in_fp32
from tests.parity.fixture import RECORDED, Fixture
from tests.parity.kinds.sampler_masked import masks_of
from tests.parity.kinds.sampler_trajectory import calls, initial

FILES = {
    "sampler_res_multistep_beta6_t2va": set(),
    "sampler_euler_simple4_fl2va": set(),
    "sampler_res_multistep_beta6_denoise05_t2va": set(),
    "sampler_res_multistep_simple8_ref2va_curve": set(),
    "sampler_res_multistep_beta12_t2va_curve": {4, 11},
    "sampler_masked_euler_simple4_t2va": set(),
}
"""Recorded run -> steps that may differ here."""


def differing(name: str) -> set[int]:
    """Steps of a recorded bf16 run whose network call doesn't give the recorded bits."""
    fixture = Fixture(RECORDED / f"{name}.safetensors")
    masked = fixture.kind == "sampler_masked"
    given: dict[str, Any] = {"masks": masks_of(fixture)} if masked else {"init": initial(fixture)}
    with nullcontext() if masked else clocks_in_fp32():
        return {
            i
            for i, call in enumerate(calls(fixture, "bf16", **given))
            if not all(torch.equal(got, want) for got, want in call.values())
        }


def test_bf16_calls_give_the_recorded_bits() -> None:
    if not RECORDED.is_dir():
        pytest.skip(f"no fixtures at {RECORDED}")
    if recorder.is_at_hand():
        recorder.run(__name__)
        return
    for name in FILES:
        fixture = Fixture(RECORDED / f"{name}.safetensors")
        importlib.import_module(f"tests.parity.kinds.{fixture.kind}").check(fixture)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {name: differing(name) - tolerated for name, tolerated in FILES.items()}
    extra = {name: steps for name, steps in found.items() if steps}
    sys.exit(f"not the recorded bits at steps {extra}" if extra else 0)

"""The recorded bf16 runs, bit for bit, in a process held to the matrix kernels that recorded them.

Those kernels were chosen by a CPU with 512-bit vectors and without AMX tiles, which sum in another order. What differs
even so: the timestep network's matmul of M = 2 or 3 rows (fp32, 1e-7, one rounding of `t_emb`), and the curve form's
audio timestep, which was recorded in fp32 and is float64 here as in current ComfyUI. Where such kernels can't be had
(another CPU, another torch) the stated bounds are checked instead.
"""

import sys

import pytest
import torch

from tests.denoiser import recorder
from tests.parity.dit_case import case_of
from tests.parity.fixture import RECORDED, Fixture
from tests.parity.kinds.dit_forward import check, outputs

FILES = ("dit_t2va", "dit_fl2va", "dit_ref2va", "dit_pruned_curve")
TOLERATED = {"dit_t2va": {"t_emb"}, "dit_fl2va": {"t_emb"}, "dit_ref2va": set(), "dit_pruned_curve": {"t_emb", "audio"}}


def case(name: str) -> Fixture:
    return Fixture(RECORDED / f"{name}.safetensors")


def differing(name: str) -> set[str]:
    """Recorded bf16 outputs that a run here doesn't reproduce."""
    fixture = case(name)
    got = outputs(fixture, case_of(fixture, torch.bfloat16))
    return {key for key, value in got.items() if not torch.equal(value, fixture[f"out.bf16.{key}"])}


def test_bf16_runs_are_the_recorded_ones_bit_for_bit() -> None:
    if not RECORDED.is_dir():
        pytest.skip(f"no fixtures at {RECORDED}")
    if recorder.is_at_hand():
        recorder.run(__name__)
        return
    for name in FILES:
        check(case(name))


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {name: differing(name) for name in FILES}
    extra = {name: keys - TOLERATED[name] for name, keys in found.items() if keys - TOLERATED[name]}
    sys.exit(f"not the recorded bits: {extra}" if extra else 0)

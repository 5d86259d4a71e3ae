"""`dit_pdd_heads`: stacked output heads along a schedule, the same inputs at each of its sigmas."""

from itertools import pairwise

import torch

from tests.parity.dit_case import case_of
from tests.parity.fixture import Fixture, assert_close

FP32_REL = 1e-6
"""Stated: 3e-6. Reached: 4e-7."""


def check(fixture: Fixture) -> None:
    sigmas = fixture["in.sigmas"].tolist()
    case = case_of(fixture, torch.float32, sigmas)
    checked = set()
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        inputs = (case.prepared, fixture["in.video"], fixture["in.audio"], sigma)
        told = case.model(*inputs, step=step, sigma_next=sigma_next)
        found = case.model(*inputs, step=step)
        for name, got, same in zip(("video", "audio"), told, found, strict=True):
            assert torch.equal(got, same), f"step {step}: the schedule's next sigma isn't the one given"
            assert_close(f"step {step} {name}", got, fixture[f"out.{step}.{name}"], rel=FP32_REL)
            checked.add(f"{step}.{name}")
    assert set(fixture.under("out.")) == checked

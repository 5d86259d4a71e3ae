"""Between the steps of a run the host queues work and waits for nothing: a wait would leave the device idle."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from h3runtime.core import SamplerSettings, TextFeatures
from h3runtime.denoiser.denoise import begin
from h3runtime.denoiser.sampler import sample
from h3runtime.engine.resident import ResidentEngine
from h3runtime.packing.layout import pack

pytestmark = pytest.mark.gpu

SETTINGS = SamplerSettings(steps=5, seed=1)
TEXT_ROWS = 9


@contextmanager
def no_waiting() -> Iterator[None]:
    """A call that makes the host wait for the device is an error in here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_the_guard_sees_a_wait(cuda: torch.device) -> None:
    with no_waiting(), pytest.raises(RuntimeError, match="synchronizing"):
        float(torch.ones((), device=cuda))


@pytest.mark.parametrize("sampler", ["res_multistep", "euler"])
def test_steps_wait_for_nothing(engine: ResidentEngine, sampler: str) -> None:
    network, tags = engine.models.transformers["fl2va"], np.ones(TEXT_ROWS, dtype=np.int64)
    text = TextFeatures(torch.randn(1, TEXT_ROWS, network.config.text_dim), tags)
    layout = pack(7, 6, 10, 37, tags)
    estimate, x = begin(network, layout, text, (), (), SETTINGS, device=engine.device, dtype=torch.bfloat16)
    steps = sample(sampler, x, estimate.sigmas, estimate)
    next(steps)
    with no_waiting():
        taken = list(steps)
    assert len(taken) == 4
    assert torch.isfinite(taken[-1].after).all()

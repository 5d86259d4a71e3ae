"""Step reuse on an accelerator: sparing nothing is the exact run; what is spared is told a step behind too."""

import pytest
import torch

from h3runtime.core import REUSE_THRESHOLDS, SamplerSettings, StepReuse
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.sampler import Step
from tests.denoiser import tiny
from tests.denoiser.test_denoise import run
from tests.parity.dit_case import build

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
STEPS = 8


@pytest.fixture(scope="module")
def model() -> Dit:
    weights = {name: tensor.to(CUDA) for name, tensor in tiny.weights().items()}
    return build(weights, torch.bfloat16, tiny.CONFIG)


@pytest.mark.parametrize("mode", REUSE_THRESHOLDS)
def test_steps_are_spared_on_the_device(model, mode) -> None:
    asked = SamplerSettings(STEPS, seed=4)
    named = {"device": CUDA, "dtype": torch.bfloat16, "layout": tiny.layout()}
    exact = run(model, asked, **named)
    nothing = run(model, asked, reuse=StepReuse(mode, 0.0, 0.0, 1.0), **named)
    assert torch.equal(nothing.video, exact.video) and torch.equal(nothing.audio, exact.audio)
    seen: list[Step] = []
    whole: list[int] = []
    hook = model.register_forward_hook(lambda *_: whole.append(1))
    run(model, asked, reuse=StepReuse(mode, 3.0, 0.0, 1.0), on_step=seen.append, **named)
    hook.remove()
    assert [step.reused for step in seen] == [False] + [True] * (STEPS - 1) and len(whole) == 1

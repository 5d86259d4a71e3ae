"""Step reuse on an accelerator: sparing nothing is the exact run; what is spared is told a step behind too."""

from typing import Any

import pytest
import torch

from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.core import REUSE_THRESHOLDS, CacheMode, Latents, SamplerSettings, StepReuse
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.recordings import Recordings
from h3runtime.denoiser.sampler import Step
from tests.denoiser import tiny
from tests.denoiser.test_denoise import text
from tests.gpu.test_graphs import CONFIG
from tests.parity.dit_case import build

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
STEPS = 8


@pytest.fixture(scope="module")
def model() -> Dit:
    return build({name: tensor.to(CUDA) for name, tensor in tiny.weights(CONFIG).items()}, torch.bfloat16, CONFIG)


ASKED = SamplerSettings(STEPS, seed=4)
WIDEST = 3.0


def widest(mode: CacheMode, threshold: float = WIDEST) -> StepReuse:
    return StepReuse(mode, threshold, 0.0, 1.0)


def first_reused(mode: CacheMode) -> int:
    """What latents foretell takes two computed steps to know."""
    return 1 if mode == "first_block" else 2


def same(one: Latents, other: Latents) -> bool:
    return torch.equal(one.video, other.video) and torch.equal(one.audio, other.audio)


def made(network: Any, reuse: StepReuse | None, on_step: Any = None) -> Latents:
    layout = tiny.layout()
    named: dict[str, Any] = {"device": CUDA, "dtype": torch.bfloat16, "attention": SdpaAttention()}
    conditions = tiny.conditions(layout, CONFIG)
    return denoise(network, layout, text(), *conditions, ASKED, reuse=reuse, on_step=on_step, **named)


@pytest.mark.parametrize("mode", REUSE_THRESHOLDS)
def test_steps_are_spared_on_the_device(model: Dit, mode: CacheMode) -> None:
    assert same(made(model, widest(mode, 0.0)), made(model, None))
    seen: list[Step] = []
    whole: list[int] = []
    hook = model.register_forward_hook(lambda *_: whole.append(1))
    made(model, widest(mode), seen.append)
    hook.remove()
    computed = first_reused(mode)
    assert [step.reused for step in seen] == [False] * computed + [True] * (STEPS - computed)
    assert len(whole) == computed


@pytest.mark.parametrize("threshold", [0.0, 0.3, WIDEST])
@pytest.mark.parametrize("mode", ["easycache", "h3_cache"])
def test_recorded_steps_are_reused_as_launched_ones_are(model: Dit, mode: CacheMode, threshold: float) -> None:
    """A replay overwrites what it gave before: what is kept of it must be a copy. Only computed steps are replayed."""
    launched: list[Step] = []
    wanted = made(model, widest(mode, threshold), launched.append)
    tally = Tally()
    store = Recordings("on", 2**30, CUDA)
    replayed: list[Step] = []
    for _ in range(2):
        replayed.clear()
        before = store.replays
        found = made(store.of_run(model, tally, STEPS), widest(mode, threshold), replayed.append)
        assert same(found, wanted) and store.told()["fault"] == ""
        assert [step.reused for step in replayed] == [step.reused for step in launched]
        assert store.replays - before == sum(not step.reused for step in replayed)

"""The denoising loop on an accelerator: the same run as on the CPU, reported a step behind, ended by step."""

import pytest
import torch

from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.masks import Masks
from h3runtime.errors import JobCancelled, NumericalError
from tests.denoiser import tiny
from tests.denoiser.test_denoise import run
from tests.gpu.waits import forbid_waits, waits_allowed_again
from tests.parity.dit_case import build

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
LAYOUT = tiny.layout()


@pytest.fixture(autouse=True)
def _ieee_fp32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def dit(device: torch.device, dtype: torch.dtype) -> Dit:
    weights = {name: tensor.to(device) for name, tensor in tiny.weights().items()}
    return build(weights, dtype, tiny.CONFIG)


def masks() -> Masks:
    content = Latents(tiny.noise(1, 6, 2, 4, 6, seed=8), tiny.noise(1, 8, 2, 5, seed=9))
    video = torch.rand(1, 1, 2, 4, 6, generator=torch.Generator().manual_seed(1))
    return Masks(content, video, torch.tensor([[[[0.0, 0.5, 1.0, 1.0, 0.2], [1.0, 1.0, 1.0, 0.0, 0.0]]]]))


@pytest.mark.parametrize("sampler", ["euler", "res_multistep"])
@pytest.mark.parametrize("masked", [False, True])
def test_fp32_is_the_run_of_the_cpu(sampler, masked) -> None:
    asked = SamplerSettings(5, sampler, seed=4)
    given = {"dtype": torch.float32, "masks": masks() if masked else None}
    here = run(dit(torch.device("cpu"), torch.float32), asked, LAYOUT, **given)
    there = run(dit(CUDA, torch.float32), asked, LAYOUT, device=CUDA, **given)
    for a, b in ((here.video, there.video), (here.audio, there.audio)):
        assert b.is_cuda
        assert float((a - b.cpu()).norm() / a.norm()) < 1e-5


def test_bf16_repeats_bit_for_bit() -> None:
    model, asked = dit(CUDA, torch.bfloat16), SamplerSettings(4, seed=4)
    first, again = (run(model, asked, LAYOUT, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    assert torch.equal(first.video, again.video) and torch.equal(first.audio, again.audio)


def test_steps_are_reported_in_order_and_a_stop_costs_one_more_step_at_most() -> None:
    model, seen = dit(CUDA, torch.bfloat16), []
    run(model, SamplerSettings(5), LAYOUT, device=CUDA, dtype=torch.bfloat16, on_step=seen.append)
    assert [s.index for s in seen] == [0, 1, 2, 3, 4]
    seen.clear()
    with pytest.raises(JobCancelled) as caught:
        named = {"on_step": seen.append, "should_stop": lambda: len(seen) >= 2}
        run(model, SamplerSettings(9), LAYOUT, device=CUDA, dtype=torch.bfloat16, **named)
    assert len(seen) == 2 and caught.value.step == 3


@pytest.mark.parametrize("sampler", ["euler", "res_multistep"])
def test_no_step_waits_for_the_device(sampler) -> None:
    """From the second step on, which is launched before the first one is told of, PyTorch has to meet no wait. What
    the loop waits for by itself is an event of the step before."""
    model, seen = dit(CUDA, torch.bfloat16), []

    def on_step(step) -> None:
        seen.append(step.index)
        forbid_waits()

    with waits_allowed_again():
        run(model, SamplerSettings(6, sampler), LAYOUT, device=CUDA, dtype=torch.bfloat16, on_step=on_step)
    assert seen == list(range(6))


@pytest.mark.parametrize("step", [0, 2, 4])
def test_a_result_that_is_not_finite_names_its_step(step) -> None:
    model = dit(CUDA, torch.bfloat16)

    class Spoiled:
        """The same network with one broken answer."""

        config, refine, prepare = model.config, model.refine, model.prepare

        def __call__(self, *given, **named):
            video, audio = model(*given, **named)
            return (video * float("nan") if named["step"] == step else video), audio

    with pytest.raises(NumericalError) as caught:
        run(Spoiled(), SamplerSettings(5), LAYOUT, device=CUDA, dtype=torch.bfloat16)
    assert caught.value.step == step

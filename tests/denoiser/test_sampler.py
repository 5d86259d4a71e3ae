"""Updates: exact where theory says so, Euler at both ends, steps that chain."""

import math
from itertools import pairwise

import pytest
import torch

from h3runtime.core import SamplerSettings
from h3runtime.denoiser.sampler import SAMPLERS, Step, sample
from h3runtime.denoiser.schedule import sigmas as sigmas_of
from h3runtime.errors import InvalidRequest

TARGET = torch.tensor([1.0, -2.0, 0.5, 3.0])
NOISE = torch.tensor([0.3, 0.1, -1.2, 0.8])


def schedule(steps: int, name: str = "beta") -> torch.Tensor:
    return sigmas_of(SamplerSettings(steps=steps, scheduler=name))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_a_perfect_estimate_is_reached_exactly(sampler, steps) -> None:
    """If D is always the clean latent, x stays on the straight line to it."""
    sigmas = schedule(steps)
    taken = list(sample(sampler, NOISE, sigmas, lambda _x, _step: TARGET))
    assert [s.index for s in taken] == list(range(steps))
    for step in taken:
        line = step.sigma * NOISE + (1 - step.sigma) * TARGET
        torch.testing.assert_close(step.x, line, rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(taken[-1].after, TARGET)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_steps_chain(sampler) -> None:
    sigmas = schedule(5)
    taken = list(sample(sampler, NOISE, sigmas, lambda x, step: x * 0.5 + step))
    assert torch.equal(taken[0].x, NOISE)
    for before, after in pairwise(taken):
        assert torch.equal(before.after, after.x) and before.sigma_next == after.sigma
    assert [(s.sigma, s.sigma_next) for s in taken] == list(zip(sigmas[:-1].tolist(), sigmas[1:].tolist(), strict=True))


def test_an_euler_step_by_hand() -> None:
    (step,) = list(sample("euler", NOISE, torch.tensor([0.8, 0.2]), lambda x, _step: x - 0.8 * TARGET))
    torch.testing.assert_close(step.after, NOISE - 0.6 * TARGET)


def test_a_multistep_step_by_hand() -> None:
    """dit-contract §5.5 in float64, for the middle one of three steps."""
    sigmas = torch.tensor([0.9, 0.7, 0.4, 0.0])
    estimates = [TARGET, TARGET * 0.3 + 1, TARGET]
    taken = list(sample("res_multistep", NOISE, sigmas, lambda _x, step: estimates[step]))
    h = math.log(0.7 / 0.4)
    c2 = math.log(0.7 / 0.9) / h
    phi1 = (1 - math.exp(-h)) / h
    phi2 = (1 - phi1) / h
    want = math.exp(-h) * taken[1].x + h * ((phi1 - phi2 / c2) * estimates[1] + phi2 / c2 * estimates[0])
    torch.testing.assert_close(taken[1].after, want, rtol=1e-5, atol=1e-6)


def test_multistep_begins_and_ends_as_euler() -> None:
    sigmas = schedule(4)
    slow, fast = (list(sample(name, NOISE, sigmas, lambda x, _s: x * 0.1 + 1)) for name in ("euler", "res_multistep"))
    assert torch.equal(slow[0].after, fast[0].after)
    assert not torch.equal(slow[1].after, fast[1].after)
    last = fast[-1]
    torch.testing.assert_close(last.after, last.denoised)


def test_multistep_integrates_a_linear_estimate_exactly() -> None:
    """D linear in lam = -log sigma, between its two Euler steps: what makes it second order. Euler itself is not."""
    sigmas = schedule(12, "linear")
    lam = [-math.log(s) for s in sigmas[:-1].tolist()]

    def worst(sampler: str) -> float:
        taken = list(sample(sampler, NOISE, sigmas, lambda _x, i: TARGET + lam[i] * NOISE))[1:-1]
        return max(float((step.after - exact(step)).abs().max()) for step in taken)

    def exact(step: Step) -> torch.Tensor:
        here, following = lam[step.index], lam[step.index + 1]
        decay = math.exp(here - following)
        return decay * step.x + (1 - decay) * TARGET + (following - 1 - decay * (here - 1)) * NOISE

    assert worst("res_multistep") < 1e-5 < 1e-3 < worst("euler")


def test_an_unknown_sampler_is_named_before_any_work() -> None:
    def never(_x: torch.Tensor, _step: int) -> torch.Tensor:
        raise AssertionError("the network was called")

    with pytest.raises(InvalidRequest) as caught:
        next(sample("heun", NOISE, schedule(2), never))
    (offence,) = caught.value.offences
    assert offence.field == "sampler" and "euler" in offence.legal

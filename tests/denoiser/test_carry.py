"""Audio on the video's sigma: the published example, the equivalence it rests on, and its rounding points."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser import schedule
from h3runtime.denoiser.carry import Carry, Streams, audio_scale
from h3runtime.denoiser.sampler import sample

SETTINGS = SamplerSettings(steps=6)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_published_example() -> None:
    """dit-contract §11.5: sigma .8, shift 12."""
    carry = Carry.at(0.8, SETTINGS)
    assert carry.scale == 4.0
    assert float(carry.into) == pytest.approx(0.625, abs=1e-6)
    assert float(carry.out) == pytest.approx(2.5, abs=1e-6)
    audio, velocity = random(5), random(5, seed=1)
    torch.testing.assert_close(carry.to_sampler(audio, velocity), -3 * audio + 2.5 * velocity, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shift", "audio_shift", "scale"), [(12, 3, 4), (6, 3, 2), (3, 3, 1), (10, 3, 10 / 3)])
def test_scale_follows_the_shifts(shift, audio_shift, scale) -> None:
    assert audio_scale(SamplerSettings(steps=1, shift=shift, audio_shift=audio_shift)) == scale


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 1), st.floats(0.5, 30), st.floats(0.5, 30))
def test_the_carried_estimate_is_the_streams_own_times_scale(sigma, shift, audio_shift) -> None:
    """y - sigma v_y = s (x_a - sigma_a v_a)."""
    asked = SamplerSettings(steps=1, shift=shift, audio_shift=audio_shift)
    carry, clocks = Carry.at(sigma, asked), schedule.timesteps(sigma, shift, audio_shift)
    carried, velocity = random(20).double(), random(20, seed=1).double()
    audio = carry.to_network(carried)
    estimate = carried - clocks.sigma_video * carry.to_sampler(audio, velocity)
    own = carry.scale * (audio - clocks.sigma_audio * velocity)
    # c and f are fp32 values: s of them adds up.
    torch.testing.assert_close(estimate, own, rtol=1e-5, atol=3e-6 * max(1.0, carry.scale))


@pytest.mark.parametrize("name", sorted(schedule.SCHEDULERS))
def test_carried_euler_is_euler_on_the_audios_own_clock(name) -> None:
    """dit-contract §5.2 and §11.5, with a velocity that depends on the state."""
    asked = SamplerSettings(steps=7, scheduler=name)
    sigmas = schedule.sigmas(asked)
    levels = sigmas.tolist()
    own = [schedule.timesteps(s, 12.0, 3.0).sigma_audio for s in levels[:-1]] + [0.0]
    target = random(32, seed=2)

    def velocity(audio: torch.Tensor, sigma: float) -> torch.Tensor:
        return (audio - target) / max(sigma, 0.05) * 0.9 + 0.1 * audio

    def carried(x: torch.Tensor, step: int) -> torch.Tensor:
        carry = Carry.at(levels[step], asked)
        audio = carry.to_network(x)
        return x - carry.to_sampler(audio, velocity(audio, own[step])) * levels[step]

    after = list(sample("euler", random(32), sigmas, carried))[-1].after / audio_scale(asked)
    audio = random(32)
    for sigma, following in pairwise(own):
        audio = audio + (following - sigma) * velocity(audio, sigma)
    torch.testing.assert_close(after, audio, rtol=1e-4, atol=1e-4)


def test_every_product_rounds_in_the_latents_dtype() -> None:
    carry = Carry.at(0.7, SETTINGS)
    audio, velocity = random(50).bfloat16(), random(50, seed=1).bfloat16()
    seen = carry.to_network(audio)
    assert seen.dtype == torch.bfloat16
    assert torch.equal(seen, audio * carry.into.bfloat16())
    answer = carry.to_sampler(seen, velocity)
    assert torch.equal(answer, (1 - 4.0) * seen + carry.out.bfloat16() * velocity)


def test_at_pure_noise_both_clocks_agree() -> None:
    carry = Carry.at(1.0, SETTINGS)
    assert float(carry.into) == 1.0 and float(carry.out) == 4.0


def test_packing_is_video_then_audio() -> None:
    latents = Latents(random(1, 4, 2, 3, 5), random(1, 6, 2, 7))
    streams = Streams.of(latents)
    packed = streams.join(latents.video, latents.audio)
    assert torch.equal(packed[:120], latents.video.flatten()) and torch.equal(packed[120:], latents.audio.flatten())
    video, audio = streams.split(packed)
    assert torch.equal(video, latents.video) and torch.equal(audio, latents.audio)
    assert video.data_ptr() == packed.data_ptr()


def test_packing_spreads_masks_over_channels() -> None:
    streams = Streams(torch.Size([1, 4, 2, 3, 5]), torch.Size([1, 6, 2, 7]))
    video, audio = streams.split(streams.join(torch.ones(1, 1, 2, 3, 5), torch.zeros(1, 1, 2, 7)))
    assert bool((video == 1).all()) and bool((audio == 0).all())

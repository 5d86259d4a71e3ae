"""The published rule of few-step adapters, derived here anew, against what the ordinary schedule and Euler step do.

    q_i = (N - i) / N        sigma = S_12(q) or S_6(q) of the picture, S_3(q) of the sound (dit-contract §7.2, §5.1)
    x <- x + (sigma_i - sigma_i+1) u        each stream on its own grid, u towards the data: training's own Euler step

and a bank of 32 heads, of which a step decodes the mean of those that its stretch of q covers (§4.7).
"""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser import schedule
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.heads import window
from h3runtime.denoiser.noise import target_noise
from tests.denoiser import tiny
from tests.denoiser.test_denoise import CPU, LAYOUT, text

RULES = [(4, 12.0), (8, 12.0), (4, 6.0), (8, 6.0)]
"""Forwards and the picture's shift of what is published."""
TOLERANCE = 1e-6
SOUND = 3.0


def published(steps: int, shift: float) -> list[float]:
    """S_shift(q), float64."""
    points = [(steps - i) / steps for i in range(steps + 1)]
    return [shift * q / (1 + (shift - 1) * q) for q in points]


class Bent:
    """A network whose velocities depend on what it sees and on each stream's own clock, so that errors add up."""

    config = SimpleNamespace(channels=6, audio_channels=8)

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def refine(self, text_hidden: torch.Tensor) -> torch.Tensor:
        return text_hidden

    def prepare(self, *_: Any, **named: Any) -> Any:
        return SimpleNamespace(shift=named["shift"], audio_shift=named["audio_shift"])

    def __call__(self, prepared: Any, video: torch.Tensor, audio: torch.Tensor, sigma: float, **_: Any) -> Any:
        clocks = schedule.timesteps(sigma, prepared.shift, prepared.audio_shift)
        self.seen.append((video, audio))
        return self.towards_noise(video, clocks.sigma_video), self.towards_noise(audio, clocks.sigma_audio)

    @staticmethod
    def towards_noise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return torch.sin(3 * x) + sigma * x


@pytest.mark.parametrize("scheduler", ["simple", "linear"])
@pytest.mark.parametrize(("steps", "shift"), RULES)
def test_sigmas_of_both_streams_are_the_published_ones(steps: int, shift: float, scheduler: str) -> None:
    found = schedule.sigmas(SamplerSettings(steps, "euler", scheduler, shift, SOUND)).tolist()
    assert found == pytest.approx(published(steps, shift), rel=TOLERANCE)
    heard = [schedule.timesteps(sigma, shift, SOUND).sigma_audio for sigma in found[:-1]]
    assert heard == pytest.approx(published(steps, SOUND)[:-1], rel=TOLERANCE)


@pytest.mark.parametrize("scheduler", ["simple", "linear"])
@pytest.mark.parametrize(("steps", "shift"), RULES)
def test_every_update_is_trainings_own_on_both_grids(steps: int, shift: float, scheduler: str) -> None:
    network = Bent()
    asked = SamplerSettings(steps, "euler", scheduler, shift, SOUND, seed=5)
    keyframes, references = tiny.conditions(LAYOUT)
    made = denoise(network, LAYOUT, text(), keyframes, references, asked, device=CPU, dtype=torch.float32)
    drawn = target_noise(5, 2, 4, 6, 5, channels=6, audio_channels=8)
    states = [(drawn.video.double(), drawn.audio.double())]
    for (video, video_next), (audio, audio_next) in zip(
        pairwise(published(steps, shift)), pairwise(published(steps, SOUND)), strict=True
    ):
        x, y = states[-1]
        states.append(
            (
                x + (video - video_next) * -Bent.towards_noise(x, video),
                y + (audio - audio_next) * -Bent.towards_noise(y, audio),
            )
        )
    assert len(network.seen) == steps
    for (video, audio), (x, y) in zip([*network.seen, _ends(made)], states, strict=True):
        assert _apart(video, x) <= TOLERANCE and _apart(audio, y) <= TOLERANCE


@pytest.mark.parametrize("scheduler", ["simple", "linear"])
@pytest.mark.parametrize(("steps", "shift"), RULES)
def test_every_update_goes_as_far_as_the_published_step(steps: int, shift: float, scheduler: str) -> None:
    """How much of u each of its own states was moved by, read off the states: sigma_i - sigma_i+1 of that stream. To
    1e-6 of the noise, whose sigma is 1: a sigma near 1 in fp32 is 3e-8 off."""
    network = Bent()
    asked = SamplerSettings(steps, "euler", scheduler, shift, SOUND, seed=5)
    keyframes, references = tiny.conditions(LAYOUT)
    made = denoise(network, LAYOUT, text(), keyframes, references, asked, device=CPU, dtype=torch.float32)
    for stream, grid in enumerate((published(steps, shift), published(steps, SOUND))):
        states = [each[stream].double() for each in (*network.seen, _ends(made))]
        for (x, after), (sigma, sigma_next) in zip(pairwise(states), pairwise(grid), strict=True):
            u = -Bent.towards_noise(x, sigma)
            length = float(((after - x) * u).sum() / (u * u).sum())
            assert length == pytest.approx(sigma - sigma_next, rel=0, abs=TOLERANCE)


def _ends(made: Latents) -> tuple[torch.Tensor, torch.Tensor]:
    return made.video, made.audio


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other).norm() / other.norm())


@pytest.mark.parametrize("steps", [4, 8])
@pytest.mark.parametrize("stream_shift", [12.0, SOUND])
def test_a_step_decodes_the_mean_of_the_heads_in_its_stretch(steps: int, stream_shift: float) -> None:
    """Each head stands for one of 32 even intervals of q and is weighted by its length on the stream's own clock."""
    bank, each = 32, 32 // steps
    lengths = [before - after for before, after in pairwise(published(bank, stream_shift))]
    for index, (sigma, sigma_next) in enumerate(pairwise(published(steps, 12.0))):
        found = window(bank, sigma, sigma_next, 12.0, stream_shift)
        own = lengths[index * each : (index + 1) * each]
        assert (found.start, found.stop) == (index * each, (index + 1) * each)
        assert found.weights == pytest.approx([length / sum(own) for length in own], rel=TOLERANCE)

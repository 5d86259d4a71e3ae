"""Runs that reuse steps: which calls the network gets, what stands in their place, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from h3runtime.core import (
    REUSE_THRESHOLDS,
    Keyframe,
    Latents,
    PackedLayout,
    Reference,
    SamplerSettings,
    StepReuse,
    TextFeatures,
)
from h3runtime.denoiser.carry import Carry, Streams
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.masks import Masks
from h3runtime.denoiser.noise import target_noise
from h3runtime.denoiser.reuse.change import thinned
from h3runtime.denoiser.sampler import Step
from h3runtime.errors import JobCancelled, NumericalError
from h3runtime.packing.layout import pack
from tests.denoiser import tiny

CPU = torch.device("cpu")
MODES = pytest.mark.parametrize("mode", REUSE_THRESHOLDS)
SAMPLERS = pytest.mark.parametrize("sampler", ["euler", "res_multistep"])
LAYOUT = tiny.layout()
BARE = pack(2, 4, 6, 5, np.ones(9, dtype=np.int64))
ALWAYS = 3.0


def first_reused(mode: str) -> int:
    """What latents foretell is known once two steps are computed, what a first block adds from one."""
    return 1 if mode == "first_block" else 2


def widest(mode: str, threshold: float = ALWAYS, **more: Any) -> StepReuse:
    """Of every step that has one before it, every latent compared."""
    return StepReuse(mode, threshold, 0.0, 1.0, 1, **more)  # type: ignore[arg-type]


class Runs:
    """Runs of a network with what is counted of them."""

    def __init__(self, network: Any, layout: PackedLayout = LAYOUT, dtype: torch.dtype = torch.float32) -> None:
        self.network, self.layout, self.dtype = network, layout, dtype
        self.steps: list[Step] = []

    def __call__(self, asked: SamplerSettings, reuse: StepReuse | None, **named: Any) -> Latents:
        self.steps.clear()
        text = TextFeatures(tiny.noise(1, self.layout.text_rows, 24, seed=2), self.layout.text_tags)
        conditions: tuple[list[Keyframe], list[Reference]] = tiny.conditions(self.layout)
        named = {"device": CPU, "dtype": self.dtype, "on_step": self.steps.append} | named
        return denoise(self.network, self.layout, text, *conditions, asked, reuse=reuse, **named)

    @property
    def reused(self) -> list[int]:
        return [step.index for step in self.steps if step.reused]


class Counted:
    """Whole forwards of a DiT, and calls of its first and last block, by hooks."""

    def __init__(self, model: Dit) -> None:
        self.whole = self.first = self.last = 0
        model.register_forward_hook(lambda *_: self._add("whole"))
        model.blocks[0].register_forward_hook(lambda *_: self._add("first"))
        model.blocks[-1].register_forward_hook(lambda *_: self._add("last"))

    def _add(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)


def same(one: Latents, other: Latents) -> bool:
    return torch.equal(one.video, other.video) and torch.equal(one.audio, other.audio)


@MODES
@SAMPLERS
def test_a_threshold_of_nothing_is_the_exact_run(mode, sampler) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        runs = Runs(tiny.dit(dtype=dtype), dtype=dtype)
        asked = SamplerSettings(5, sampler, seed=4)
        exact = runs(asked, None)
        assert all(step.change is None for step in runs.steps)
        assert same(runs(asked, widest(mode, 0.0)), exact) and runs.reused == []
        known = first_reused(mode)
        assert [step.change is None for step in runs.steps] == [True] * known + [False] * (5 - known)


@MODES
def test_what_is_told_is_what_ran(mode) -> None:
    model = tiny.dit(dtype=torch.float32)
    counted, runs = Counted(model), Runs(model)
    runs(SamplerSettings(8, seed=4), widest(mode, 0.5))
    assert 0 < len(runs.reused) < 8 and 0 not in runs.reused
    assert counted.whole == counted.last == 8 - len(runs.reused)
    assert counted.first == (8 if mode == "first_block" else counted.whole)


@MODES
def test_outside_the_window_every_step_is_computed(mode) -> None:
    runs = Runs(tiny.dit(dtype=torch.float32))
    runs(SamplerSettings(12, seed=4), StepReuse(mode, ALWAYS))
    sigmas, known = [step.sigma for step in runs.steps], first_reused(mode)
    assert runs.reused == [i for i, sigma in enumerate(sigmas) if 0.3871 < sigma <= 0.9855 and i >= known]
    runs(SamplerSettings(12, seed=4), replace(widest(mode), start=0.5))
    assert runs.reused == [i for i, sigma in enumerate(sigmas) if sigma <= 12 / 13]
    runs(SamplerSettings(12, seed=4), replace(widest(mode), end=0.5))
    assert runs.reused == [i for i, sigma in enumerate(sigmas) if sigma > 12 / 13 and i >= known]


class Straight:
    """A network whose latents go straight from noise to a target: its velocities never change. moving: what of them."""

    config: Any = SimpleNamespace(channels=6, audio_channels=8)

    def __init__(self, video: float = 1.0, audio: float = 1.0) -> None:
        drawn = target_noise(3, 2, 4, 6, 5, channels=6, audio_channels=8)
        self.velocities = video * (drawn.video - TARGET.video), audio * (drawn.audio - TARGET.audio)
        self.asked: list[int] = []

    def refine(self, text_hidden: torch.Tensor) -> torch.Tensor:
        return text_hidden

    def prepare(self, *given: Any, **named: Any) -> None:
        pass

    def __call__(self, *_: Any, step: int, **__: Any) -> Any:
        self.asked.append(step)
        return self.velocities


class Bent(Straight):
    """Whose velocities grow by so much of themselves at every step."""

    def __init__(self, video: float, audio: float) -> None:
        super().__init__()
        self.bends = video, audio

    def __call__(self, *given: Any, step: int, **named: Any) -> Any:
        made = super().__call__(*given, step=step, **named)
        return tuple(velocity * (1.0 + bend * step) for velocity, bend in zip(made, self.bends, strict=True))


TARGET = Latents(tiny.noise(1, 6, 2, 4, 6, seed=30), tiny.noise(1, 8, 2, 5, seed=31))


@SAMPLERS
@pytest.mark.parametrize("shifts", [(12.0, 3.0), (3.0, 5.0)])
@pytest.mark.parametrize("forecast", ["hold", "taylor"])
def test_a_straight_path_stays_straight_where_its_steps_are_reused(sampler, shifts, forecast) -> None:
    """A multistep update reads each estimate at its own sigma: were a reused one taken for another's, it would bend."""
    network = Straight()
    runs = Runs(network, BARE)
    asked = SamplerSettings(9, sampler, "beta", *shifts, seed=3)
    exact = runs(asked, None)
    got = runs(asked, widest("h3_cache", forecast=forecast))
    assert runs.reused == list(range(2, 9)) and network.asked == [*range(9), 0, 1]
    for a, b, c in ((got.video, exact.video, TARGET.video), (got.audio, exact.audio, TARGET.audio)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["easycache", "h3_cache"])
def test_each_stream_is_held_to_the_threshold_by_itself(mode) -> None:
    """What doesn't change could be reused for ever; the other one decides."""
    for bends, wanted in (((0.0, 0.0), range(2, 9)), ((0.3, 0.0), ()), ((0.0, 0.3), ())):
        runs = Runs(Bent(*bends), BARE)
        runs(SamplerSettings(9, "euler", seed=3), widest(mode, 0.01))
        assert runs.reused == list(wanted)
        for step in runs.steps[2:]:
            assert step.change is not None
            assert all((change > 0.01) == (bend > 0) for change, bend in zip(step.change, bends, strict=True))


@SAMPLERS
def test_a_change_is_easycaches_estimate(sampler) -> None:
    """k |x - x_before| / |v|, k = |v - v_earlier| / |x_v - x_earlier| of the last two computed (dit-contract §9)."""
    runs, asked = Runs(Bent(0.2, 0.1), BARE), SamplerSettings(7, sampler, seed=3)
    runs(asked, widest("easycache", 0.4))
    assert 0 < len(runs.reused) < 5
    computed = [step.index for step in runs.steps if not step.reused]
    for step in runs.steps[2:]:
        earlier, last = [index for index in computed if index < step.index][-2:]
        assert step.change is not None
        for stream, got in enumerate(step.change):
            x = [_stream(each.x, each.sigma, asked, stream) for each in runs.steps]
            v = [(1.0 + (0.2, 0.1)[stream] * index) * Straight().velocities[stream] for index in (earlier, last)]
            k = (v[1] - v[0]).abs().sum() / (x[last] - x[earlier]).abs().sum()
            moved = k * (x[step.index] - x[step.index - 1]).abs().sum() / v[1].abs().sum()
            assert got == pytest.approx(float(moved), rel=1e-3)


def _stream(x: torch.Tensor, sigma: float, asked: SamplerSettings, stream: int) -> torch.Tensor:
    """Of a packed state, in its own units."""
    video, carried = Streams.of(TARGET).split(x)
    return video if stream == 0 else Carry.at(sigma, asked).to_network(carried)


@MODES
def test_a_run_remembers_nothing_of_the_one_before(mode) -> None:
    runs = Runs(tiny.dit(dtype=torch.bfloat16), dtype=torch.bfloat16)
    asked = SamplerSettings(6, seed=4)
    first = runs(asked, widest(mode, 0.6))
    runs(SamplerSettings(6, seed=9), widest(mode, 0.6))
    assert same(runs(asked, widest(mode, 0.6)), first) and runs.reused


@MODES
@SAMPLERS
def test_what_is_kept_comes_back_as_it_was(mode, sampler) -> None:
    """Reused steps included, whatever share of it is kept."""
    content = Latents(tiny.noise(1, 6, 2, 4, 6, seed=8), tiny.noise(1, 8, 2, 5, seed=9))
    video = torch.zeros(1, 1, 2, 4, 6)
    video[..., 2:] = 1.0
    video[..., 1] = 0.5
    runs = Runs(tiny.dit(dtype=torch.float32))
    got = runs(SamplerSettings(6, sampler, seed=2), widest(mode), masks=Masks(content, video, torch.zeros(1, 1, 2, 5)))
    assert runs.reused == list(range(first_reused(mode), 6))
    assert torch.equal(got.audio, content.audio) and torch.equal(got.video[..., :1], content.video[..., :1])
    assert not torch.equal(got.video[..., 2:], content.video[..., 2:])


@pytest.mark.parametrize("mode", ["easycache", "h3_cache"])
def test_what_is_kept_makes_no_step_look_still(mode) -> None:
    content = Latents(tiny.noise(1, 6, 2, 4, 6, seed=8), tiny.noise(1, 8, 2, 5, seed=9))
    video = torch.zeros(1, 1, 2, 4, 6)
    video[..., :2, :2] = 1.0
    runs = Runs(Bent(0.2, 0.2), BARE)
    asked = SamplerSettings(6, "euler", seed=3)
    runs(asked, widest(mode, 0.0), masks=Masks(content, video))
    masked = [step.change for step in runs.steps][2:]
    runs(asked, widest(mode, 0.0))
    for there, free in zip(masked, [step.change for step in runs.steps][2:], strict=True):
        assert there is not None and free is not None
        assert there[0] == pytest.approx(free[0], rel=0.3) and there[1] == pytest.approx(free[1], rel=1e-5)


@MODES
def test_a_stream_of_which_nothing_is_made_decides_nothing(mode) -> None:
    content = Latents(tiny.noise(1, 6, 2, 4, 6, seed=8), tiny.noise(1, 8, 2, 5, seed=9))
    runs = Runs(tiny.dit(dtype=torch.float32))
    masks = Masks(content, None, torch.zeros(1, 1, 2, 5))
    runs(SamplerSettings(5, seed=2), widest(mode, 0.0), masks=masks)
    known = runs.steps[first_reused(mode) :]
    assert all(step.change is not None and step.change[0] > 0 == step.change[1] for step in known)


@MODES
def test_a_stop_is_obeyed_between_reused_steps(mode) -> None:
    runs = Runs(tiny.dit(dtype=torch.float32))
    with pytest.raises(JobCancelled):
        runs(SamplerSettings(8, seed=2), widest(mode), should_stop=lambda: len(runs.steps) >= 3)
    assert runs.reused == [1, 2][first_reused(mode) - 1 :]


@MODES
def test_what_is_not_finite_is_reused_by_nobody(mode) -> None:
    model = tiny.dit(dtype=torch.float32)
    runs = Runs(model)
    model.blocks[-1].register_forward_hook(lambda *call: call[-1] * float("nan"))
    with pytest.raises(NumericalError) as caught:
        runs(SamplerSettings(5, seed=2), widest(mode))
    assert caught.value.step == 0


def test_a_network_without_blocks_has_no_first_one() -> None:
    with pytest.raises(TypeError, match="Straight"):
        Runs(Straight(), BARE)(SamplerSettings(3, seed=2), widest("first_block"))


@pytest.mark.parametrize("mode", ["easycache", "first_block"])
def test_fewer_values_compared_decide_much_the_same(mode) -> None:
    runs = Runs(tiny.dit(dtype=torch.float32))
    found = []
    for factor in (1, 2):
        runs(SamplerSettings(6, seed=2), replace(widest(mode, 0.0), subsample=factor))
        found.append([step.change[1] for step in runs.steps if step.change is not None])
    assert found[0] != found[1] and found[1] == pytest.approx(found[0], rel=0.5)


def test_a_small_pictures_sides_are_not_thinned_to_a_corner() -> None:
    """From 32 latents on, 512 px, each eighth is taken, as EasyCache does."""
    for side, taken in ((6, 6), (8, 4), (24, 4), (32, 4), (48, 6), (84, 11)):
        pair = thinned(torch.zeros(1, 24, 2, side, side), torch.zeros(1, 32, 2, 40), 8)
        assert pair.video.shape == (1, 24, 2, taken, taken) and pair.audio.shape == (1, 32, 2, 5)

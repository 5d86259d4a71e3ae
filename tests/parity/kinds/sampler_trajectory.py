"""`sampler_trajectory`: whole runs, step by step: noise, sigmas, states, estimates, what the network saw and said.

Every network call and every update is replayed by itself from recorded states, and then the whole run, which must stay
within the bounds at every step. That bf16 gives the recorded bits is shown in tests/denoiser/test_sampler_bits.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from h3runtime.core import Latents, SamplerSettings, TextFeatures
from h3runtime.denoiser import schedule
from h3runtime.denoiser.carry import audio_scale
from h3runtime.denoiser.denoise import begin, denoise
from h3runtime.denoiser.masks import Masks
from h3runtime.denoiser.noise import target_noise
from h3runtime.denoiser.sampler import Point, Step, find_sampler
from tests.parity.dit_case import DTYPES, conditions_of, layout_of, model_of
from tests.parity.fixture import Fixture, assert_close, assert_equal, rel_l2

FP32_REL = 2e-6
"""Stated: 2e-5. Reached: 6e-7, and 8e-7 in the curve form."""
UPDATE_REL = {"euler": 0.0, "res_multistep": 3e-7}
"""One update from recorded states. The multistep one has a logarithm in it."""


@dataclass
class Recorder:
    """Stands before a network and keeps what passes: audio in and out, and the timesteps of each call."""

    network: Any
    audio_in: list[torch.Tensor] = field(default_factory=list)
    audio_out: list[torch.Tensor] = field(default_factory=list)
    timelines: list[tuple[float, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def __call__(self, prepared: Any, video: torch.Tensor, audio: torch.Tensor, sigma: float, **rest: Any) -> Any:
        velocities = self.network(prepared, video, audio, sigma, **rest)
        self.timelines.append(self.network.clock(prepared, sigma, rest["masks"]).timeline)
        self.audio_in.append(audio)
        self.audio_out.append(velocities[1])
        return velocities


@dataclass(frozen=True)
class Trajectory:
    """One replayed run."""

    seen: Recorder
    steps: list[Step]
    latents: Latents


def check(fixture: Fixture) -> None:
    check_scalars(fixture)
    init = initial(fixture)
    for dtype in fixture.meta["dtypes"]:
        check_calls(fixture, dtype, init)
        check_updates(fixture, dtype)
        run = replay(fixture, dtype, init=init)
        for step, timestep in zip(run.steps, fixture.meta["timesteps_passed"], strict=True):
            assert float(torch.tensor(step.sigma) * schedule.TABLE_SIZE) == timestep
        check_run(fixture, dtype, run)


# What a recorded file asks for


def settings_of(fixture: Fixture) -> SamplerSettings:
    meta = fixture.meta
    return SamplerSettings(
        steps=meta["steps"],
        sampler=meta["sampler"],
        scheduler=meta["scheduler"],
        shift=meta["config"]["sigma_shift_video"],
        audio_shift=meta["config"]["sigma_shift_audio"],
        seed=meta["seed"],
        denoise=meta["denoise"],
    )


def initial(fixture: Fixture) -> Latents | None:
    return Latents(fixture["in.init_video"], fixture["in.init_audio"]) if "in.init_video" in fixture else None


def arguments(fixture: Fixture, dtype: str, init: Latents | None, masks: Masks | None) -> tuple[list[Any], dict]:
    """What `denoise` and `begin` take; the first is a Recorder before the network."""
    conditions, tags = conditions_of(fixture), fixture["in.text_tags"]
    return [
        Recorder(model_of(fixture, DTYPES[dtype])),
        layout_of(fixture["in.noise_video"], fixture["in.noise_audio"], tags, conditions),
        TextFeatures(fixture["in.text_states"], tags.numpy()),
        conditions.keyframes,
        conditions.references,
        settings_of(fixture),
    ], {"device": fixture.device, "dtype": DTYPES[dtype], "init": init, "masks": masks}


def replay(fixture: Fixture, dtype: str, init: Latents | None = None, masks: Masks | None = None) -> Trajectory:
    given, named = arguments(fixture, dtype, init, masks)
    steps: list[Step] = []
    latents = denoise(*given, **named, on_step=steps.append)
    return Trajectory(given[0], steps, latents)


def state(fixture: Fixture, dtype: str, step: int) -> torch.Tensor:
    """The recorded state before a step. The first is recorded once, for all dtypes."""
    return fixture[f"out.{dtype}.step{step}.x" if step else "out.fp32.step0.x"]


# Comparisons


def check_scalars(fixture: Fixture) -> None:
    """What needs no network: sigmas, the audio's scale, the noise that the seed draws."""
    settings = settings_of(fixture)
    assert audio_scale(settings) == fixture.meta["audio_scale"]
    assert_equal("sigmas", schedule.sigmas(settings), fixture["out.sigmas"])
    assert schedule.forwards(settings) == fixture.meta["n_model_calls"]
    video, audio = fixture["in.noise_video"], fixture["in.noise_audio"]
    sizes = {"channels": video.shape[1], "audio_channels": audio.shape[1]}
    drawn = target_noise(settings.seed, *video.shape[2:], audio.shape[-1], **sizes)
    torch.testing.assert_close(drawn.video, video, rtol=0, atol=1e-6)
    torch.testing.assert_close(drawn.audio, audio, rtol=0, atol=1e-6)


def check_calls(fixture: Fixture, dtype: str, init: Latents | None = None, masks: Masks | None = None) -> None:
    """Each network call by itself, from the recorded state."""
    for i, call in enumerate(calls(fixture, dtype, init, masks)):
        for name, (got, want) in call.items():
            _close(fixture, dtype, f"step{i}.{name}", got, want, 1.5)


def calls(
    fixture: Fixture, dtype: str, init: Latents | None = None, masks: Masks | None = None
) -> Iterator[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """(ours, recorded) of each network call from the recorded state: its estimate, the audio it saw and answered."""
    given, named = arguments(fixture, dtype, init, masks)
    estimate, start = begin(*given, **named)
    assert_close("the first state", start, state(fixture, dtype, 0), rel=FP32_REL)
    answer = "denoised" if masks is None else "model_x0"
    for i in range(fixture.meta["n_model_calls"]):
        prefix = f"out.{dtype}.step{i}."
        asked = state(fixture, dtype, i) if masks is None else fixture[prefix + "x_model"]
        yield {
            answer: (estimate.ask(asked.to(fixture.device), i), fixture[prefix + answer]),
            "net_audio_in": (given[0].audio_in[i], fixture[prefix + "net_audio_in"]),
            "net_audio_out": (given[0].audio_out[i], audio_answer(fixture, dtype, i)),
        }


def audio_answer(fixture: Fixture, dtype: str, step: int) -> torch.Tensor:
    """The network's recorded answer, which was taken before its mask multiplied it."""
    answer = fixture[f"out.{dtype}.step{step}.net_audio_out"]
    mask = fixture.tensors.get("out.token_mask.audio")
    return answer if mask is None else answer * mask.to(answer.dtype)


def check_updates(fixture: Fixture, dtype: str) -> None:
    """Each update by itself, from recorded states and estimates; the last one gives the final latents."""
    sigmas, sampler = fixture["out.sigmas"], fixture.meta["sampler"]
    estimates = [fixture[f"out.{dtype}.step{i}.denoised"] for i in range(len(sigmas) - 1)]
    for i, estimate in enumerate(estimates):
        point = Point(state(fixture, dtype, i), estimate, estimates[i - 1] if i else None, sigmas, sigmas[i], i)
        after = find_sampler(sampler)(point)
        want = state(fixture, dtype, i + 1) if i + 1 < len(estimates) else _packed_finals(fixture, dtype)
        assert_close(f"{dtype} update {i}", after, want, rel=UPDATE_REL[sampler])


def _packed_finals(fixture: Fixture, dtype: str) -> torch.Tensor:
    video, audio = fixture[f"out.{dtype}.video"], fixture[f"out.{dtype}.audio"]
    return torch.cat([video.flatten(), audio.flatten() * fixture.meta["audio_scale"]])


def check_run(fixture: Fixture, dtype: str, run: Trajectory) -> None:
    """Our own run: fp32 within `FP32_REL`, bf16 within 1.5 (step 0) or 2 times what bf16 itself moves."""
    assert len(run.steps) == fixture.meta["n_model_calls"]
    for step in run.steps:
        i, prefix = step.index, f"out.{dtype}.step{step.index}."
        compared = {
            "x": (step.x, state(fixture, dtype, i)),
            "denoised": (step.denoised, fixture[prefix + "denoised"]),
            "net_audio_in": (run.seen.audio_in[i], fixture[prefix + "net_audio_in"]),
            "net_audio_out": (run.seen.audio_out[i], audio_answer(fixture, dtype, i)),
        }
        for name, (got, want) in compared.items():
            _close(fixture, dtype, f"step{i}.{name}", got, want, 2.0 if i else 1.5)
    for name, got in (("video", run.latents.video), ("audio", run.latents.audio)):
        _close(fixture, dtype, name, got, fixture[f"out.{dtype}.{name}"], 2.0)


def _close(fixture: Fixture, dtype: str, name: str, got: torch.Tensor, want: torch.Tensor, factor: float) -> None:
    bound = FP32_REL if dtype == "fp32" else max(FP32_REL, factor * moved(fixture, name))
    assert_close(f"{dtype} {name}", got, want, rel=bound)


def moved(fixture: Fixture, name: str) -> float:
    """How far the recorded bf16 run is from the recorded fp32 run; 0 for what both share."""
    recorded = fixture.meta["bf16_vs_fp32_run"].get(name)
    if recorded:
        return recorded["rel_l2"]
    key = f"out.bf16.{name}"
    return rel_l2(fixture[key], fixture[f"out.fp32.{name}"]) if key in fixture else 0.0

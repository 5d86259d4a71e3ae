"""How far the latents of two sides are apart from step to step, picture and sound apart.

    latents    x before each step, and the final one behind the last: what was walked, noise included
    denoised   the estimate of the clean latent at each step: what the network says

Both are told in each stream's own units: the sound is carried on the picture's sigma for the sampler, and brought back
here (dit-contract §5.2). Sides of one schedule are paired by step. Of different schedules, each step of the shorter one
is paired with the other's step of the nearest sigma; latents then only at the two ends, where both are noise and both
are clean. Reads one step of both files at a time. Fed by the command line with what `making` made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors import safe_open

from h3runtime.cli.sides.making import Made
from h3runtime.cli.sides.parts import agreement_of
from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser.carry import Carry, Streams, audio_scale
from h3runtime.denoiser.schedule import sigmas
from h3runtime.engine.latents_file import read_latents
from h3runtime.media.agreement import Agreement

STREAMS = ("video", "audio")
Pairing = Literal["step", "sigma"]


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A pair of steps, counted from 0, by stream. b, sigma_b: of side B."""

    a: int
    b: int
    sigma_a: float
    sigma_b: float
    streams: dict[str, Agreement]


@dataclass(frozen=True, slots=True)
class StepsFound:
    """latents: the last is the final one, at sigma 0."""

    pairing: Pairing
    denoised: tuple[StepPoint, ...]
    latents: tuple[StepPoint, ...]

    @property
    def final(self) -> dict[str, Agreement]:
        return self.latents[-1].streams


def compare_steps(a: Made, b: Made) -> StepsFound:
    """What both files hold."""
    levels = _levels(a.spec.sampling), _levels(b.spec.sampling)
    pairs = paired(*levels)
    same = levels[0] == levels[1]
    walked = [pair for pair in pairs if same or pair == (0, 0)]
    first, second = (_Walk.of(made) for made in (a, b))
    with safe_open(a.steps, "pt") as one, safe_open(b.steps, "pt") as other:
        denoised = tuple(
            _point(pair, levels, first.denoised(one, pair[0]), second.denoised(other, pair[1])) for pair in pairs
        )
        latents = tuple(_point(pair, levels, first.x(one, pair[0]), second.x(other, pair[1])) for pair in walked)
    ends = len(levels[0]) - 1, len(levels[1]) - 1
    final = _point(ends, levels, first.final, second.final)
    return StepsFound("step" if same else "sigma", denoised, (*latents, final))


def paired(a: Sequence[float], b: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """Steps of two schedules, each its sigmas with the 0 at the end. Of one schedule each with itself; else every step
    of the one that has fewer with the nearest of the other."""
    if list(a) == list(b):
        return tuple((i, i) for i in range(len(a) - 1))
    if len(b) < len(a):
        return tuple((one, other) for other, one in paired(b, a))
    return tuple((i, min(range(len(b) - 1), key=lambda j: abs(b[j] - sigma))) for i, sigma in enumerate(a[:-1]))


@dataclass(frozen=True, slots=True)
class _Walk:
    """One side's file, read."""

    sampling: SamplerSettings
    sigmas: tuple[float, ...]
    streams: Streams
    final: Latents

    @classmethod
    def of(cls, made: Made) -> _Walk:
        final, _ = read_latents(made.latents)
        return cls(made.spec.sampling, _levels(made.spec.sampling), Streams.of(final), final)

    def x(self, file: Any, step: int) -> Latents:
        video, audio = self.streams.split(file.get_tensor(f"step{step}.x"))
        return Latents(video, Carry.at(self.sigmas[step], self.sampling).to_network(audio))

    def denoised(self, file: Any, step: int) -> Latents:
        video, audio = self.streams.split(file.get_tensor(f"step{step}.denoised"))
        return Latents(video, audio / audio_scale(self.sampling))


def _levels(sampling: SamplerSettings) -> tuple[float, ...]:
    return tuple(sigmas(sampling).tolist())


def _point(pair: tuple[int, int], levels: tuple[Sequence[float], Sequence[float]], a: Latents, b: Latents) -> StepPoint:
    return StepPoint(*pair, levels[0][pair[0]], levels[1][pair[1]], dict(_streams(a, b)))


def _streams(a: Latents, b: Latents) -> Iterator[tuple[str, Agreement]]:
    tensors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {"video": (a.video, b.video), "audio": (a.audio, b.audio)}
    for name in STREAMS:
        yield name, agreement_of(*tensors[name])

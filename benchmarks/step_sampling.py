"""Whole samplings of a request, for `step --samplings`: a lane's own loop from noise to latents, the peer's forwards.

    a lane    `denoiser.denoise` as a request runs it: text refined, noise, every step of the contract's sampler and
              schedule, with step reuse where the lane has it; the wall's time from its call until the device is done
    peer      as many forwards of its model as the contract has, each at its own sigma on the latents that the one
              before left, with an Euler update between them, which is what its scheduler does; inputs are made before
              the clock starts, which is in its favour

forwards are counted by a hook of the network, reused steps are what the loop tells of each; both have to make up the
schedule. Which attention ran is counted step by step. What a rule decides on random weights says nothing of what it
decides on a trained model: it is told, and `skipped` of a lane reuses the steps that are named instead, after the same
look at the latents, so that what was counted on a trained model can be timed. Fed by `step_session`; judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from benchmarks.step_lanes import Lane, Ready
from benchmarks.step_peer import peer_of
from benchmarks.step_workload import Workload
from h3runtime.core import Forecast, SamplerSettings, StepReuse
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit, Prepared
from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.reuse.forecast import Extrapolation
from h3runtime.denoiser.sampler import Step
from h3runtime.denoiser.schedule import sigmas, timesteps
from h3runtime.engine.resident import COMPUTE_DTYPE

STREAMS: Final = ("hidden_states", "audio_hidden_states")
"""Its inputs that a step changes."""
Alive = Callable[[], object]
"""Called ahead of every step, for who watches this process."""


@dataclass(frozen=True, slots=True)
class StepTook:
    """One step. ms: of the device, from its launch to the next one's. change: by which reuse decided, of picture and
    sound. attention: calls by backend, and the share of cubes that sparse ones read."""

    ms: float
    reused: bool = False
    change: tuple[float, float] | None = None
    attention: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    """One whole sampling. forwards: that the network was asked for."""

    wall_ms: float
    forwards: int
    steps: tuple[StepTook, ...]
    peak_bytes: int | None = None

    @property
    def skipped(self) -> tuple[int, ...]:
        return tuple(number for number, step in enumerate(self.steps) if step.reused)


class Marks:
    """Moments on the device's own clock where it has one, in the order in which they were made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: list[Any] = []

    def mark(self) -> None:
        if self._device.type != "cuda":
            self._made.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._made.append(event)

    def between(self) -> list[float]:
        """Milliseconds from each to the next; the device has to be done."""
        pairs = list(zip(self._made, self._made[1:], strict=False))
        if self._device.type != "cuda":
            return [1e3 * (after - before) for before, after in pairs]
        return [float(before.elapsed_time(after)) for before, after in pairs]


class GivenSteps:
    """A network for one run of `denoise` that makes the steps it is given from earlier ones, as `LatentReuse` does."""

    def __init__(self, network: Dit, forecast: Forecast, sampling: SamplerSettings, skipped: Collection[int]) -> None:
        self.config, self.refine, self.prepare = network.config, network.refine, network.prepare
        self.reused = set[int]()
        self._network, self._skipped = network, skipped
        self._shifts = sampling.shift, sampling.audio_shift
        self._video, self._audio = Extrapolation(forecast), Extrapolation(forecast)

    def __call__(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
        sigma_next: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = timesteps(sigma, *self._shifts)
        if step in self._skipped:
            self.reused.add(step)
            return self._video.at(own.sigma_video), self._audio.at(own.sigma_audio)
        made = self._network(prepared, video, audio, sigma, step=step, masks=masks, sigma_next=sigma_next)
        self._video.note(own.sigma_video, made[0])
        self._audio.note(own.sigma_audio, made[1])
        return made  # type: ignore[no-any-return]


class _Looks:
    """At every step: marks, and what attention was called with since the one before."""

    def __init__(self, lane: Ready, device: torch.device, alive: Alive) -> None:
        self._tally, self._alive = lane.tally, alive
        self.marks, self.attention = Marks(device), list[dict[str, Any]]()
        self._asked, self._before = 0, lane.tally.look()

    def should_stop(self) -> bool:
        """`denoise` asks ahead of everything, ahead of the first step, and behind every step."""
        self._alive()
        self._asked += 1
        if self._asked > 1:
            self.marks.mark()
        if self._asked > 2:
            self.attention.append(self._tally.since(self._before))
        self._before = self._tally.look()
        return False


def sampled(lane: Ready, device: torch.device, alive: Alive = lambda: None) -> Sampling:
    """One request's sampling. AssertionError where forwards and skipped steps don't make up the schedule."""
    settings, told, asked = lane.given.settings, list[Step](), [0]
    given, reuse = _reuse_of(lane)
    looks = _Looks(lane, device, alive)

    def count(*_: object) -> None:
        asked[0] += 1

    hook = lane.network.register_forward_pre_hook(count)
    held = _reset_peak(device)
    try:
        began = time.perf_counter()
        denoise(
            given or lane.network,
            lane.given.layout,
            lane.given.text,
            (),
            lane.given.references,
            settings,
            device=device,
            dtype=COMPUTE_DTYPE,
            attention=lane.attention,
            on_step=told.append,
            should_stop=looks.should_stop,
            reuse=reuse,
        )
        _wait(device)
        wall = 1e3 * (time.perf_counter() - began)
    finally:
        hook.remove()
    taken = zip(looks.marks.between(), told, looks.attention, strict=True)
    steps = tuple(_took(ms, step, attention, given) for ms, step, attention in taken)
    made = Sampling(wall, asked[0], steps, _peak(device, held))
    assert made.forwards + len(made.skipped) == len(sigmas(settings)) - 1, "a step is neither computed nor reused"
    return made


def _took(ms: float, step: Step, attention: dict[str, Any], given: GivenSteps | None) -> StepTook:
    return StepTook(ms, step.reused if given is None else step.index in given.reused, step.change, attention)


def _reuse_of(lane: Ready) -> tuple[GivenSteps | None, StepReuse | None]:
    """What stands for the network, if it isn't itself, and what `denoise` is told: with given steps a threshold of 0,
    so that the rule looks at latents and waits as ever, and lets nothing pass."""
    reuse, skipped = lane.lane.reuse, lane.lane.skipped
    if reuse is None or skipped is None:
        return None, reuse
    return GivenSteps(lane.network, reuse.forecast, lane.given.settings, skipped), replace(reuse, threshold=0.0)


@torch.no_grad()
def sampled_by_peer(model: Any, given: Workload, device: torch.device, alive: Alive = lambda: None) -> Sampling:
    """The peer's, of the same clip: all of its forwards, one after the other. ArithmeticError for latents that are no
    numbers."""
    walk = PeerWalk(model, given)
    marks, held = Marks(device), _reset_peak(device)
    _wait(device)
    began = time.perf_counter()
    marks.mark()
    for number in range(len(walk.steps)):
        alive()
        walk.take(number)
        marks.mark()
    _wait(device)
    wall = 1e3 * (time.perf_counter() - began)
    if not all(bool(torch.isfinite(part).all()) for part in (walk.pictures, walk.sounds)):
        raise ArithmeticError("its latents are no numbers")
    return Sampling(wall, len(walk.steps), tuple(map(StepTook, marks.between())), _peak(device, held))


class PeerWalk:
    """Its latents on the way from noise, rows fp32 [1, n, C], the conditions' ahead; inputs of all steps are made."""

    def __init__(self, model: Any, given: Workload) -> None:
        shifts, visited = (given.settings.shift, given.settings.audio_shift), sigmas(given.settings).tolist()
        sound, picture = given.layout.segments[-2:]
        self.steps = [peer_of(model, given, sigma) for sigma in visited[:-1]]
        self.pictures, self.sounds = (self.steps[0].inputs[name].clone() for name in STREAMS)
        self._clocks = [timesteps(sigma, *shifts) for sigma in visited]
        self._targets = [(0, slice(one.start - one.stop, None)) for one in (picture, sound)]

    def take(self, number: int) -> None:
        """One forward and the update after it. What the model gives is x0 - noise."""
        step, now, then = self.steps[number], self._clocks[number], self._clocks[number + 1]
        shown = dict(zip(STREAMS, (self.pictures, self.sounds), strict=True))
        rows = step.model(**{**step.inputs, **shown}, return_dict=False)
        picture, sound = self._targets
        self.pictures[picture] += (now.sigma_video - then.sigma_video) * rows[0][picture]
        self.sounds[sound] += (now.sigma_audio - then.sigma_audio) * rows[1][sound]


def approximations(lane: Ready) -> list[str]:
    """What a whole sampling of it doesn't compute as the definition does, for people."""
    told = [f"products: {lane.lane.linear}"] if lane.lane.linear not in ("resident_bf16", "dequant") else []
    own: Any = getattr(lane.attention, "backend", lane.attention)
    if not getattr(own, "exact", True):
        note = getattr(own, "note", "")
        told.append(f"attention: {own.name}{f', {note}' * bool(note)}")
    return [*told, *_reuse_told(lane.lane)]


def _reuse_told(lane: Lane) -> list[str]:
    reuse = lane.reuse
    if reuse is None:
        return []
    how = f"{reuse.forecast}, window {reuse.start:g} to {reuse.end:g}"
    if lane.skipped is not None:
        return [f"steps {', '.join(map(str, lane.skipped))} (from 0) reused, as given ({reuse.forecast})"]
    return [f"steps reused: {reuse.mode} below {reuse.threshold:g}, as it decides on random weights ({how})"]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: torch.device, held: int) -> int | None:
    return torch.cuda.max_memory_allocated(device) - held if device.type == "cuda" else None

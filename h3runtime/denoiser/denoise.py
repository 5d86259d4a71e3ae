"""Noise to clean latents: ties schedule, noise, carry, masks, sampler and network into one run.

Does the loop, its progress, its stop checks and its finite checks; holds no model and knows no job. Fed by `engine`
with a network, a layout and conditions; its `Latents` go to the VAEs.

    x = sigma_0 noise + (1 - sigma_0) init                      fp32 packed vector, audio carried (dit-contract §5.2)
    each step: round x to the network's dtype, undo the carry, ask the network, carry its velocity
               D = x - sigma v                                  fp32, from the unrounded x (§4.1)
               the sampler moves x

The host stays one step behind an accelerator: step i is launched, then step i - 1 is looked at, reported and may end
the run. So nothing waits for a step in flight, and a stop takes effect within a step. With
`reuse` a step of its window waits for the one before it: whether to launch it is decided by what that one made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import torch

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.core import (
    Keyframe,
    Latents,
    PackedLayout,
    Reference,
    SamplerSettings,
    ShouldStop,
    StepReuse,
    TextFeatures,
)
from h3runtime.denoiser.carry import Carry, Streams, audio_scale
from h3runtime.denoiser.finite import FiniteWatch
from h3runtime.denoiser.masks import Keeper, Masks
from h3runtime.denoiser.network import LatentSizes, Network, PreparedT, Velocities
from h3runtime.denoiser.noise import target_noise
from h3runtime.denoiser.reuse.log import ReuseLog
from h3runtime.denoiser.reuse.wrapping import reusing
from h3runtime.denoiser.sampler import Step, find_sampler, sample
from h3runtime.denoiser.schedule import sigmas as sigmas_of
from h3runtime.errors import JobCancelled, NumericalError

STAGE = "sampling"

OnStep = Callable[[Step], None]
"""Called once a step is done and known to be finite; `Step.index` counts from 0."""


@dataclass(frozen=True, slots=True)
class Estimate(Generic[PreparedT]):
    """A network as the sampler sees it: packed fp32 x [N] and a step -> D [N]. sigmas: fp32 [n + 1] on the CPU."""

    network: Velocities[PreparedT]
    prepared: PreparedT
    settings: SamplerSettings
    sigmas: torch.Tensor
    streams: Streams
    dtype: torch.dtype
    keeper: Keeper | None = None

    def __call__(self, x: torch.Tensor, step: int) -> torch.Tensor:
        if self.keeper is None:
            return self.ask(x, step)
        shown = self.keeper.show(x, float(self.sigmas[step]))
        return self.keeper.restore(self.ask(shown, step))

    def ask(self, x: torch.Tensor, step: int) -> torch.Tensor:
        """The network's own estimate at x."""
        sigma = float(self.sigmas[step])
        carry = Carry.at(sigma, self.settings)
        video, carried = self.streams.split(x.to(self.dtype))
        audio = carry.to_network(carried)
        video_velocity, audio_velocity = self.network(
            self.prepared,
            video,
            audio,
            sigma,
            step=step,
            masks=None if self.keeper is None else self.keeper.tokens,
            sigma_next=float(self.sigmas[step + 1]),
        )
        carried_velocity = carry.to_sampler(audio, audio_velocity.to(self.dtype))
        velocity = self.streams.join(video_velocity.to(self.dtype), carried_velocity)
        return x - velocity.float() * sigma


def denoise(
    network: Network[PreparedT],
    layout: PackedLayout,
    text: TextFeatures,
    keyframes: Sequence[Keyframe],
    references: Sequence[Reference],
    settings: SamplerSettings,
    *,
    device: torch.device,
    dtype: torch.dtype,
    attention: AttentionBackend | None = None,
    on_step: OnStep | None = None,
    should_stop: ShouldStop | None = None,
    init: Latents | None = None,
    masks: Masks | None = None,
    reuse: StepReuse | None = None,
) -> Latents:
    """One run, from noise at `settings.seed` (mixed with `init` if denoise < 1) to clean latents, fp32 on `device`.

    dtype: the network's, bf16 or fp32; what it reads is rounded to it. attention: instead of the network's own. With
    `masks`, their content is the initial latent unless `init` is another, and comes back bit for bit where a mask is 0;
    ComfyUI's last update leaves it a rounding away (5e-7 measured). reuse: steps to spare the network (`reuse`); each
    `Step` tells whether it was. Raises InvalidRequest for illegal settings
    before any work, JobCancelled between steps, NumericalError naming the first step whose result is not finite.
    """
    _stop_if_asked(should_stop, 0)
    estimate, x = begin(
        network,
        layout,
        text,
        keyframes,
        references,
        settings,
        device=device,
        dtype=dtype,
        attention=attention,
        init=init,
        masks=masks,
    )
    for done in _watched(_steps(estimate, x, reuse), len(estimate.sigmas) - 1, device, should_stop):
        x = done.after
        if on_step is not None:
            on_step(done)
    video, audio = estimate.streams.split(x)
    made = Latents(video=video, audio=audio / audio_scale(settings))
    if masks is None or estimate.keeper is None:
        return made
    return estimate.keeper.finish(made, masks.content)


def begin(
    network: Network[PreparedT],
    layout: PackedLayout,
    text: TextFeatures,
    keyframes: Sequence[Keyframe],
    references: Sequence[Reference],
    settings: SamplerSettings,
    *,
    device: torch.device,
    dtype: torch.dtype,
    attention: AttentionBackend | None = None,
    init: Latents | None = None,
    masks: Masks | None = None,
) -> tuple[Estimate[PreparedT], torch.Tensor]:
    """All of a run but its steps: what the sampler asks, and x before the first step. Arguments as for `denoise`."""
    find_sampler(settings.sampler)
    sigmas = sigmas_of(settings)
    init = init if init is not None or masks is None else masks.content
    drawn = _draw(network.config, layout, settings.seed, init)
    streams = Streams.of(drawn)
    noise = streams.join(drawn.video, drawn.audio).to(device)
    keeper = None if masks is None else Keeper.of(masks, noise, settings, dtype)
    prepared = network.prepare(
        layout,
        network.refine(text.hidden.to(device, dtype)),
        keyframes,
        references,
        settings.seed,
        sigmas.tolist() if keeper is None or keeper.tokens is None else None,
        shift=settings.shift,
        audio_shift=settings.audio_shift,
        attention=attention,
    )
    estimate = Estimate(network, prepared, settings, sigmas, streams, dtype, keeper)
    return estimate, _start(noise, init, float(sigmas[0]), streams, settings)


def _steps(estimate: Estimate[PreparedT], x: torch.Tensor, reuse: StepReuse | None) -> Iterator[Step]:
    """All of a run from x, one by one."""
    settings = estimate.settings
    if reuse is None:
        return sample(settings.sampler, x, estimate.sigmas, estimate)
    log = ReuseLog()
    sparing = replace(estimate, network=reusing(estimate.network, reuse, settings, log))
    return log.told(sample(settings.sampler, x, estimate.sigmas, sparing))


def _draw(sizes: LatentSizes, layout: PackedLayout, seed: int, init: Latents | None) -> Latents:
    """The target's noise. An initial latent knows its own size, which an odd canvas loses in the layout."""
    height, width = (layout.height, layout.width) if init is None else init.video.shape[-2:]
    return target_noise(
        seed,
        layout.latent_frames,
        height,
        width,
        layout.audio_latents,
        channels=sizes.channels,
        audio_channels=sizes.audio_channels,
    )


def _start(
    noise: torch.Tensor, init: Latents | None, sigma: float, streams: Streams, settings: SamplerSettings
) -> torch.Tensor:
    """sigma noise + (1 - sigma) latent; without a latent it is all zeros (dit-contract §5.3)."""
    if init is None:
        return sigma * noise
    clean = streams.join(init.video.float(), init.audio.float() * audio_scale(settings)).to(noise.device)
    return sigma * noise + (1.0 - sigma) * clean


def _watched(steps: Iterator[Step], count: int, device: torch.device, should_stop: ShouldStop | None) -> Iterator[Step]:
    """The same steps, known to be finite; on an accelerator each is held back until the next one is launched."""
    watch = FiniteWatch(count, device)
    held: list[Step] = []
    _stop_if_asked(should_stop, 0)
    for step in steps:
        watch.note(step.index, step.after)
        held.append(step)
        if len(held) > watch.lag:
            yield _finite(held.pop(0), watch)
        _stop_if_asked(should_stop, step.index + 1)
    for step in held:
        yield _finite(step, watch)


def _finite(step: Step, watch: FiniteWatch) -> Step:
    if not watch.is_finite(step.index):
        raise NumericalError(f"step {step.index} gave values that are not finite", stage=STAGE, step=step.index)
    return step


def _stop_if_asked(should_stop: ShouldStop | None, step: int) -> None:
    if should_stop is not None and should_stop():
        raise JobCancelled("the job was cancelled", stage=STAGE, step=step)

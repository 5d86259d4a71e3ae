"""The second pass of a clip: its video latents upscaled, then sampled again from a low sigma on the larger canvas.

    first latents -> video upscaled -> x = sigma noise + (1 - sigma) upscaled -> the last steps of a schedule -> latents
                  -> sound, as it is ----------------------------------------------------------------------->

Everything that conditions the clip has been read, fitted and encoded anew for the larger canvas, as if the request had
named it. The sound is kept by a mask that is 0 everywhere: the network hears it clean and the result has its bits. What
a request's own source keeps of the picture is kept at the new size. Upscaling sees the first pass's final latents in
the DiT's normalisation (dit-contract §9); between its layers it may be stopped.

Does no arithmetic of its own. Fed by `resident`, once for each clip; which settings the second pass has is
`refine_passes`' part, where the upscaler comes from `refine_upscaler`'s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from h3runtime.core import GenerateSpec, Latents, Refined, RefinePass
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.masks import Masks
from h3runtime.denoiser.schedule import forwards
from h3runtime.engine.diagnosis import Diagnosis
from h3runtime.engine.refine_passes import forwards_of
from h3runtime.engine.run import Part, Run
from h3runtime.engine.sampling import STAGE, Conditioned, Sampler
from h3runtime.engine.stopping import polled, smallest
from h3runtime.engine.work import forward_work
from h3runtime.errors import NumericalError
from h3runtime.packing.geometry import latent_side
from h3runtime.vae.upscaler import LatentUpscaler, upscale
from h3runtime.vae.video_vae import VideoVae


@dataclass(frozen=True, slots=True)
class Refiner:
    """refine: of the request. given: what conditions the second pass. part: of the sampling that it is."""

    refine: RefinePass
    upscaler: LatentUpscaler
    vae: VideoVae
    given: Conditioned
    sampler: Sampler
    part: Part

    def refined(self, first: Latents, second: GenerateSpec, run: Run, diagnosis: Diagnosis) -> tuple[Latents, Refined]:
        """first: fp32 latents of the first pass. second: the request of the second. Errors as of `Sampler.sample`."""
        began = time.monotonic()
        with run.stage(STAGE, None, self.part.ahead):
            large = self.upscaled(first.video, second, run)
        upscaled = time.monotonic()
        conditions = replace(self.given.conditions, masks=deaf(self.given.conditions.masks, large, first.audio))
        given = replace(self.given, conditions=conditions)
        init = Latents(large, first.audio)
        with diagnosis.second_pass(given.layout, first) as again:
            made = self.sampler.sample(second, given, run, again, init=init, part=self.part)
        took = Refined(forwards(second.sampling), upscaled - began, time.monotonic() - upscaled)
        return made, took

    def upscaled(self, video: torch.Tensor, second: GenerateSpec, run: Run) -> torch.Tensor:
        """[1, C, T, h, w] -> the same at the second request's size. NumericalError for values that aren't finite."""
        mean, std = (self.vae.get_buffer(name) for name in ("latents_mean", "latents_std"))
        with polled(smallest(self.upscaler), run.look):
            large = upscale(self.upscaler, video, mean, std, self.refine.scale)
        size = latent_side(second.height), latent_side(second.width)
        assert large.shape[-2:] == size, f"upscaled to {tuple(large.shape)} for {size}"
        if not bool(torch.isfinite(large).all()):
            raise NumericalError("the upscaler gave values that are not finite", stage=STAGE)
        return large


def parts_of(spec: GenerateSpec, rows: Sequence[int], transformer: DitConfig) -> tuple[Part, ...]:
    """What of all sampling each pass is, by the operations of its forwards. rows: packed rows of each."""
    forwards = forwards_of(spec)
    works = [count * forward_work(transformer, each) for count, each in zip(forwards, rows, strict=True)]
    shares = [work / sum(works) for work in works]
    before = [sum(forwards[:index]) for index in range(len(forwards))]
    return tuple(Part(share, ahead, sum(forwards)) for share, ahead in zip(shares, before, strict=True))


def deaf(masks: Masks | None, video: torch.Tensor, audio: torch.Tensor) -> Masks:
    """A request's own masks, and one more that keeps all of the sound. video: upscaled, of no meaning where the request
    keeps nothing of its own."""
    kept = torch.zeros(1, 1, *audio.shape[-2:])
    if masks is None:
        return Masks(Latents(video, audio), None, kept)
    return Masks(Latents(masks.content.video, audio), masks.video, kept)

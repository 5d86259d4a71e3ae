"""One clip's latents from what conditions it: the denoising loop with its progress, previews and diagnostics.

Does no arithmetic of its own. Fed by `resident`, once for each clip of a request with the same `Conditioned`; its
latents go to `clip`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.select import Attentions
from h3runtime.core import GenerateSpec, Latents, PackedLayout, TextFeatures
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.recordings import RecordedDit, Recordings
from h3runtime.denoiser.sampler import Step
from h3runtime.denoiser.schedule import forwards, step_numbers
from h3runtime.denoiser.stepped import SteppedAttention, told_plan
from h3runtime.engine.conditions.gathering import Conditions
from h3runtime.engine.diagnosis import Diagnosis
from h3runtime.engine.preview import ColourMap, Previews
from h3runtime.engine.run import WHOLE, Part, Run
from h3runtime.packing.geometry import audio_latents, latent_frames, latent_side
from h3runtime.packing.layout import pack

STAGE = "sampling"


@dataclass(frozen=True, slots=True)
class Conditioned:
    """What every clip of a request is sampled from."""

    text: TextFeatures
    conditions: Conditions
    layout: PackedLayout

    @classmethod
    def of(cls, spec: GenerateSpec, text: TextFeatures, conditions: Conditions) -> Conditioned:
        height, width = latent_side(spec.height), latent_side(spec.width)
        target = latent_frames(spec.frames), height, width, audio_latents(spec.frames)
        layout = pack(*target, text.tags, conditions.keyframe_shapes, conditions.reference_shapes)
        return cls(text, conditions, layout)


@dataclass(frozen=True, slots=True)
class Sampler:
    """attention: of this request. dtype: what the network computes in. colours: of previews; None makes none. tally:
    where the attention backends count their calls. recordings: of steps, if there may be any;
    reuse that looks between the blocks has none."""

    network: Dit
    attention: AttentionBackend
    device: torch.device
    dtype: torch.dtype
    colours: ColourMap | None
    tally: Tally
    recordings: Recordings | None = None

    def sample(
        self,
        spec: GenerateSpec,
        given: Conditioned,
        run: Run,
        diagnosis: Diagnosis,
        *,
        init: Latents | None = None,
        part: Part = WHOLE,
    ) -> Latents:
        """Final latents, fp32 on the device; errors as of `denoise`. init: what a run below full denoise begins with.
        part: of all sampling that the clip takes."""
        count = forwards(spec.sampling)
        previews = Previews(self.colours, given.layout, self.network.config.channels, self.device)
        diagnosis.begin()

        def on_step(step: Step) -> None:
            diagnosis.step(step)
            is_last = step.index + 1 == count
            run.step(step.index + 1, count, previews.look(step.denoised, is_last=is_last), reused=step.reused)

        with run.stage(STAGE, count, part), diagnosis.attending(self.tally):
            latents = denoise(
                self._network(spec, count),
                given.layout,
                given.text,
                given.conditions.keyframes,
                given.conditions.references,
                spec.sampling,
                device=self.device,
                dtype=self.dtype,
                attention=self.attention,
                on_step=on_step,
                should_stop=run.should_stop,
                init=init,
                masks=given.conditions.masks,
                reuse=spec.reuse,
            )
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        return latents

    def _network(self, spec: GenerateSpec, count: int) -> Dit | RecordedDit:
        if self.recordings is None or (spec.reuse is not None and spec.reuse.mode == "first_block"):
            return self.network
        return self.recordings.of_run(self.network, self.tally, count)


def attention_of(spec: GenerateSpec, default: AttentionBackend, attentions: Attentions) -> AttentionBackend:
    """What the request names, by step if it has a plan, else the default. BackendUnavailable, InvalidRequest."""
    plan = spec.attention_plan
    if len(set(plan)) < 2:
        name = plan[0] if plan else spec.attention
        return default if name is None else attentions.choose(name)[0]
    found = {name: attentions.choose(name)[0] for name in dict.fromkeys(plan)}
    return SteppedAttention(told_plan(plan), [found[plan[number]] for number in step_numbers(spec.sampling)])

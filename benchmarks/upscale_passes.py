"""The passes of `upscale`: one engine, and each pass, decoding and judging of a clip as a step of its own.

    request -> first pass -> latents -> upscaled, or upscaled and sampled again -> pictures, sound -> judge

The runtime's own code makes everything; a request's second pass is only taken apart here so that several of them can
begin with the same first pass, and pictures that were drawn can go the same way. Writes no file but its scratch. Fed by
`upscale_clips`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quality_prompts import Prompt
from benchmarks.upscale_measures import Pictures
from h3runtime.cli.generation.judging import rule_on
from h3runtime.core import GenerateSpec, Latents, RefinePass
from h3runtime.engine.clip import decode_frames, decode_sound
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.diagnosis import Diagnosis
from h3runtime.engine.refine import Refiner
from h3runtime.engine.refine_passes import passes_of
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.engine.run import FIRST_GUESS, WHOLE, Run
from h3runtime.engine.sampling import Conditioned, Sampler, attention_of
from h3runtime.media import sound
from h3runtime.nano.judge import Verdict, judge
from h3runtime.settings import resolve

UPSCALED = "upscaled"


@dataclass(frozen=True, slots=True)
class Second:
    """A second pass. sampler, scheduler: instead of the first one's."""

    steps: int
    denoise: float
    sampler: str = ""
    scheduler: str = ""

    @property
    def name(self) -> str:
        return ":".join([f"refined {self.steps}", f"{self.denoise:g}", *filter(None, [self.sampler, self.scheduler])])


def second_of(text: str) -> Second:
    """`3:0.15`, `3:0.15:euler` or `3:0.15:euler:simple`. ValueError for anything else."""
    steps, denoise, *others = text.split(":")
    return Second(int(steps), float(denoise), *others)


class Bench:
    """One engine with the embedded model, or what the settings name. upscaler: instead of the embedded one."""

    def __init__(self, device: str, threads: int, scratch: Path, upscaler: Path | None = None) -> None:
        self.scratch = scratch
        (scratch / "inputs").mkdir()
        named = {"device": device, "data_dir": scratch, "upscaler_path": upscaler or "embedded"}
        self.engine = ResidentEngine(resolve(named), threads, warm_up=False, partitions=("fl2va",))
        self.engine.load(lambda _: None)
        self.run = Run(lambda _: None, lambda: False, FIRST_GUESS)

    def spec(self, request: dict[str, Any]) -> GenerateSpec:
        ruling = rule_on(request, self.scratch, self.scratch / "inputs", self.engine.settings)
        ruling.faults.raise_any()
        return ruling.spec(self.scratch / "none.mp4", self.scratch)

    def made(self, spec: GenerateSpec) -> Latents:
        return self._sampler(spec).sample(spec, self._conditioned(spec), self.run, Diagnosis(spec))

    def upscaled(self, first: Latents, spec: GenerateSpec) -> Latents:
        """As they are before they are sampled again."""
        assert spec.refine is not None
        refiner = self._refiner(spec.refine, passes_of(spec)[1])
        return Latents(refiner.upscaled(first.video, passes_of(spec)[1], self.run), first.audio)

    def refined(self, first: Latents, spec: GenerateSpec, second: Second) -> Latents:
        assert spec.refine is not None
        refine = replace(spec.refine, steps=second.steps, denoise=second.denoise)
        again = passes_of(replace(spec, refine=refine))[1]
        named = {name: value for name in ("sampler", "scheduler") if (value := getattr(second, name))}
        again = replace(again, sampling=replace(again.sampling, **named))
        return self._refiner(refine, again).refined(first, again, self.run, Diagnosis(again))[0]

    def pictures(self, latents: Latents) -> Pictures:
        vaes, blend = self.engine.models.vaes, self.engine.settings.vae_blend
        return np.concatenate([chunk.pixels.copy() for chunk in decode_frames(latents, vaes, blend, self.run)])

    def judged(self, prompt: Prompt, frames: Pictures, latents: Latents) -> Verdict:
        heard = sound.prepare(decode_sound(latents, self.engine.models.vaes), len(frames), "comfyui")
        return judge(prompt.scene, frames, heard)

    def coded(self, frames: torch.Tensor, audio: torch.Tensor) -> Latents:
        """uint8 [F, H, W, 3] through the encoder."""
        return Latents(self.engine.models.vaes.video.encode_clip(frames.to(self.engine.device)), audio)

    def _refiner(self, refine: RefinePass, again: GenerateSpec) -> Refiner:
        model, vae = self.engine.upscaler.take(refine), self.engine.models.vaes.video
        return Refiner(refine, model, vae, self._conditioned(again), self._sampler(again), WHOLE)

    def _conditioned(self, spec: GenerateSpec) -> Conditioned:
        engine = self.engine
        encoder = MediaEncoder(engine.models.vaes, engine.device, engine.media_cache, self.run)
        conditions = conditions_of(spec, encoder)
        return Conditioned.of(spec, engine.conditioner.condition(conditions.pieces, self.run.should_stop), conditions)

    def _sampler(self, spec: GenerateSpec) -> Sampler:
        engine = self.engine
        network = engine.models.transformer_of(spec.task)
        attention = attention_of(spec, engine.attention, engine.attentions)
        return Sampler(network, attention, engine.device, COMPUTE_DTYPE, None, engine.attentions.tally)

"""Clips as arrays, by the runtime's own engine and stages; only the encoder of the file is left out.

    request -> the runtime's rules -> spec -> conditions, once for all ways -> latents of a way and schedule -> VAEs

One engine a format and linear backend stays loaded. All sets share encoder and VAEs, so what conditions a clip is made
by the exact engine alone, and every way starts from the same numbers. What the engine's own checks find is kept with a
clip and refuses none, so that a clip that they are wrong about is known. Fed by `quality`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.quality_plan import EXACT, W4A4, Schedule, Way
from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.embedded.sets import embedded_set
from h3runtime.cli.generation.judging import rule_on
from h3runtime.core import Check, GenerateSpec, Latents, SamplerSettings
from h3runtime.denoiser.schedule import forwards
from h3runtime.engine.clip import clip_shape, decode_frames, decode_sound, measure_latents
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.diagnosis import Diagnosis
from h3runtime.engine.load import checkpoint_name
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.engine.run import FIRST_GUESS, Run
from h3runtime.engine.sampling import Conditioned, Sampler, attention_of
from h3runtime.media import sound
from h3runtime.media.checks import VideoChecks, check_audio, check_latents
from h3runtime.settings import default_cache_dir, resolve

KEPT = "resident_bf16"
"""Gives the numbers of `dequant` in less time: a small model's forwards are shorter than decoding its weights is."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """latents: fp32 on the device. frames: uint8 [F, H, W, 3] there. samples: float32 [2, N], as they would be encoded.
    seconds: sampling and decoding; sampling: of them. forwards: evaluations of the model. checks: the engine's own, by
    name."""

    latents: Latents
    frames: torch.Tensor
    samples: NDArray[np.float32]
    seconds: float
    sampling: float = 0.0
    forwards: int = 0
    checks: Mapping[str, Check] = field(default_factory=dict)


class Engines:
    """masters: folder of the trained weights, the package's own unless told otherwise. scratch: for media."""

    def __init__(
        self, device: str, threads: int, scratch: Path, masters: Path = FOLDER, cache: Path | None = None
    ) -> None:
        self._device, self._threads, self._scratch = device, threads, scratch
        self._masters, self._cache = masters, cache or default_cache_dir()
        self._loaded: dict[tuple[str, str], ResidentEngine] = {}
        (scratch / "inputs").mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint(self) -> str:
        """Names the exact weights, all of them."""
        return checkpoint_name(self.engine(EXACT).models.facts)

    def engine(self, way: Way) -> ResidentEngine:
        """Loaded at first use. CheckpointError, or BackendUnavailable for a backend that can't run here."""
        key = way.format, way.linear
        if key not in self._loaded:
            self._loaded[key] = self._load(way)
        return self._loaded[key]

    def condition(self, request: dict[str, Any]) -> tuple[GenerateSpec, Conditioned]:
        """What a request asks for and what conditions it. InvalidRequest as a client would get it."""
        settings = self.engine(EXACT).settings
        ruling = rule_on(request, self._scratch, self._scratch / "inputs", settings)
        ruling.faults.raise_any()
        spec = ruling.spec(self._scratch / "none.mp4", self._scratch)
        engine, run = self.engine(EXACT), _idle()
        conditions = conditions_of(spec, MediaEncoder(engine.models.vaes, engine.device, engine.media_cache, run))
        text = engine.conditioner.condition(conditions.pieces, run.should_stop)
        return spec, Conditioned.of(spec, text, conditions)

    def make(self, way: Way, schedule: Schedule, spec: GenerateSpec, given: Conditioned) -> Made:
        run, began = _idle(), time.monotonic()
        latents, count = self.sample(way, schedule, spec, given, run=run)
        sampled = time.monotonic() - began
        made = self._decoded(latents, spec, run)
        return replace(made, seconds=time.monotonic() - began, sampling=sampled, forwards=count)

    def sample(
        self,
        way: Way,
        schedule: Schedule,
        spec: GenerateSpec,
        given: Conditioned,
        attention: AttentionBackend | None = None,
        run: Run | None = None,
    ) -> tuple[Latents, int]:
        """Latents, and how many times the model was evaluated. attention: in place of the way's own."""
        engine, run = self.engine(way), run or _idle()
        asked = replace(spec, attention=way.attention, reuse=way.reuse, sampling=_sampling(spec, schedule))
        attention = attention or attention_of(asked, engine.attention, engine.attentions)
        network = engine.models.transformer_of(spec.task)
        tally, recordings = engine.attentions.tally, engine.recordings
        sampler = Sampler(network, attention, engine.device, COMPUTE_DTYPE, None, tally, recordings)
        latents = sampler.sample(asked, given, run, Diagnosis(asked))
        return latents, forwards(asked.sampling) - len(run.skipped)

    def _decoded(self, latents: Latents, spec: GenerateSpec, run: Run) -> Made:
        engine, figures = self.engine(EXACT), measure_latents(latents)
        vaes, shape = engine.models.vaes, clip_shape(latents)
        waveform = decode_sound(latents, vaes)
        samples = sound.prepare(waveform, spec.frames, spec.encode.loudness)
        watch = VideoChecks(vaes.video.tiling.split(shape.width), vaes.video.tiling.split(shape.height))
        frames = []
        with run.stage("video_decode"):
            for chunk in decode_frames(latents, vaes, engine.settings.vae_blend, run):
                watch.feed(chunk.pixels, finite=chunk.finite)
                # Of bytes that have come to the host for the checks: the host's own buffer is written over.
                frames.append(torch.from_numpy(chunk.pixels).to(latents.video.device, copy=True))
        checks = {
            "latents": check_latents(figures, synthetic=False),
            "audio": check_audio(waveform, synthetic=False),
            "video": watch.result(latent_std=figures["video"].std, synthetic=False),
        }
        return Made(latents, torch.cat(frames), samples, 0.0, checks=checks)

    def _load(self, way: Way) -> ResidentEngine:
        made = embedded_set(self._cache, "nvfp4" if way.format == W4A4 else way.format, folder=self._masters)  # type: ignore[arg-type]
        paths = {
            "model_path": made.transformer,
            "ref2va_model_path": made.ref2va,
            "text_encoder_path": made.text_encoder,
            "video_vae_path": made.video_vae,
            "audio_vae_path": made.audio_vae,
            "tokenizer_path": made.tokenizer,
        }
        linear = KEPT if way.linear == EXACT.linear else way.linear
        settings = resolve({"device": self._device, "linear": linear, "data_dir": self._scratch, **paths})
        engine = ResidentEngine(settings, self._threads, warm_up=False)
        engine.load(lambda _: None)
        return engine


def _sampling(spec: GenerateSpec, at: Schedule) -> SamplerSettings:
    return replace(spec.sampling, steps=at.steps, sampler=at.sampler, scheduler=at.scheduler)


def _idle() -> Run:
    return Run(lambda _: None, lambda: False, FIRST_GUESS)

"""One side made: the clip as a client would get it, and beside it what is compared, all on disk.

    <side>.mp4                       the clip, as the request's format has it
    <side>.mp4.latents.safetensors   final latents
    <side>.mp4.steps.safetensors     x before each step, and the estimate at it
    <side>.mkv                       every frame and the sound, as decoded, without loss

Nothing is held in memory between the sides, so that the length of the clip and the size of a model don't add up. Made
by `Engine.generate`, as any request; fed by the command line; read by `steps`, `clips`, `attribution` and `film`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from h3runtime.cli.sides.asked import Half
from h3runtime.cli.sides.engines import spec_of
from h3runtime.cli.sides.given import told_by
from h3runtime.core import Clip, EngineFacts, GenerateSpec, OnProgress, ShouldStop, TailRequest
from h3runtime.engine.extras import steps_path
from h3runtime.engine.latents_file import latents_path
from h3runtime.engine.resident import ResidentEngine
from h3runtime.media.formats import suffix_of


@dataclass(frozen=True, slots=True)
class Made:
    """A side and what became of it. facts: of the engine that made it."""

    half: Half
    spec: GenerateSpec
    clip: Clip
    facts: EngineFacts

    @property
    def name(self) -> str:
        return self.half.side.name

    @property
    def reused(self) -> frozenset[int]:
        """Steps, from 0, that were made of earlier ones (`cache_mode`)."""
        told = (self.clip.diagnostics or {}).get("reuse", {})
        return frozenset(told.get("skipped", ()))

    @property
    def latents(self) -> Path:
        return latents_path(self.spec.output)

    @property
    def steps(self) -> Path:
        return steps_path(self.spec.output)

    @property
    def lossless(self) -> Path:
        return lossless_path(self.spec)


def planned(half: Half, engine: ResidentEngine, scratch: Path) -> GenerateSpec:
    """The side's spec, judged by the loaded engine; everything goes into `scratch`."""
    spec = half.ruling.spec(scratch / f"{half.side.name}.mp4", scratch)
    output = scratch / f"{half.side.name}{suffix_of(spec.encode.container)}"
    spec = replace(spec, output=output, save_latents=True, diagnostics=True, diagnostic_latents=True)
    spec = replace(spec, tail=TailRequest(lossless_path(spec), spec.frames))
    return spec_of(half, engine, spec)


def make(half: Half, spec: GenerateSpec, engine: ResidentEngine, on_progress: OnProgress, stop: ShouldStop) -> Made:
    """JobError kinds, told as this side's."""
    with told_by(half.side):
        clip = engine.generate(spec, on_progress, stop)
    return Made(half, spec, clip, engine.facts())


def lossless_path(spec: GenerateSpec) -> Path:
    return spec.output.with_name(f"{spec.output.stem}.lossless.mkv")

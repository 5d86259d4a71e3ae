"""Small requests and what comes of them, on whichever engine."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from h3runtime.api.guides import guides_of
from h3runtime.core import Clip, GenerateSpec, Latents, MediaFile, SamplerSettings, Task
from h3runtime.engine.latents_file import latents_path, read_latents
from h3runtime.engine.resident import ResidentEngine

STEPS = 4


@dataclass(frozen=True)
class Result:
    clip: Clip
    latents: Latents


def t2va(folder: Path, **changes: object) -> GenerateSpec:
    spec = GenerateSpec(
        job_id="gpu",
        task=Task.T2VA,
        prompt="a red ball bouncing on a blue floor, a bell ringing far away",
        width=160,
        height=96,
        frames=39,
        sampling=SamplerSettings(steps=STEPS, seed=7),
        output=folder / "clip.mp4",
        scratch=folder,
        overwrite=True,
        save_latents=True,
    )
    return replace(spec, **changes)


def fl2va(folder: Path, **changes: object) -> GenerateSpec:
    first, last = (picture(folder, number, field) for number, field in enumerate(("first_frame", "last_frame")))
    return replace(
        t2va(folder), task=Task.FL2VA, guides=guides_of({"first_frame": first, "last_frame": last}, 39), **changes
    )


MAKERS = {"t2va": t2va, "fl2va": fl2va}


def reseeded(spec: GenerateSpec, seed: int) -> GenerateSpec:
    return replace(spec, sampling=replace(spec.sampling, seed=seed))


def picture(folder: Path, number: int, field: str) -> MediaFile:
    """A picture of its own for each number, 240x150."""
    pixels = np.random.default_rng(number).integers(0, 256, (10, 16, 3), dtype=np.uint8)
    path = folder / f"{field}.png"
    Image.fromarray(pixels).resize((240, 150), Image.Resampling.BICUBIC).save(path)
    return MediaFile(path, field)


def run(engine: ResidentEngine, spec: GenerateSpec) -> Result:
    clip = engine.generate(spec, lambda _: None, lambda: False)
    return Result(clip, read_latents(latents_path(spec.output))[0])


def same_bits(a: Latents, b: Latents) -> bool:
    return torch.equal(a.video.view(torch.int32), b.video.view(torch.int32)) and torch.equal(
        a.audio.view(torch.int32), b.audio.view(torch.int32)
    )

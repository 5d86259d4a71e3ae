"""Small requests and what comes of them, on whichever engine."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.made_media import write_clip, write_sound
from h3runtime.core import (
    Clip,
    ClipInput,
    GenerateSpec,
    GuideInput,
    Latents,
    MaskSpan,
    MediaFile,
    ReferenceInput,
    SamplerSettings,
    SoundInput,
    SourceInput,
    Task,
)
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
    guides = (
        GuideInput("first_frame", 0, picture=first, fit="stretch", shown=True),
        GuideInput("last_frame", 38, picture=last, shown=True),
    )
    return replace(t2va(folder), task=Task.FL2VA, guides=guides, **changes)


def clip_with_sound(folder: Path, field: str, frames: int) -> tuple[ClipInput, SoundInput]:
    path = write_clip(folder / f"{field.replace('[', '-')}.mp4", 128, 96, frames / 24, sound=True)
    file = MediaFile(path, field)
    return ClipInput(file, 0, frames), SoundInput(file)


def ref2va(folder: Path, **changes: object) -> GenerateSpec:
    """A picture, a clip with its track, a voice, and a guide in the middle."""
    clip, track = clip_with_sound(folder, "references[1]", 22)
    voice = SoundInput(MediaFile(write_sound(folder / "voice.wav", 2.0), "references[2]"))
    references = (
        ReferenceInput("references[0]", "image", 96, 64, picture=picture(folder, 3, "references[0]")),
        ReferenceInput("references[1]", "video", 128, 96, clip=clip, sound=track),
        ReferenceInput("references[2]", "audio", sound=voice),
    )
    guide = GuideInput("keyframes[0]", 20, picture=picture(folder, 4, "keyframes[0]"))
    return replace(t2va(folder), task=Task.REF2VA, references=references, guides=(guide,), **changes)


def masked(folder: Path, **changes: object) -> GenerateSpec:
    """The left half and the first second of the sound are kept."""
    clip, track = clip_with_sound(folder, "source", 39)
    half = np.zeros((96, 160, 3), np.uint8)
    half[:, 80:] = 255
    Image.fromarray(half).save(folder / "mask.png")
    mask = MediaFile(folder / "mask.png", "masks.video")
    source = SourceInput(clip, track, mask, (MaskSpan(0.0, 1.0, 0.0),))
    return replace(t2va(folder), source=source, **changes)


MAKERS = {"t2va": t2va, "fl2va": fl2va, "ref2va": ref2va, "masked": masked}


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

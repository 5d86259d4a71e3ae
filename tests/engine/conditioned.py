"""Requests through the resident engine, for what their media do to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from h3runtime.core import Clip, GenerateSpec, Latents, ReferenceInput
from h3runtime.engine.latents_file import latents_path, read_latents
from h3runtime.engine.resident import ResidentEngine
from tests.engine.conftest import Media


def generate(engine: ResidentEngine, spec: GenerateSpec) -> Clip:
    return engine.generate(replace(spec, overwrite=True), lambda _: None, lambda: False)


def latents_of(engine: ResidentEngine, spec: GenerateSpec) -> Latents:
    generate(engine, replace(spec, save_latents=True))
    return read_latents(latents_path(spec.output))[0]


def diagnostics_of(engine: ResidentEngine, spec: GenerateSpec) -> dict[str, Any]:
    found = generate(engine, replace(spec, diagnostics=True)).diagnostics
    assert found is not None
    return dict(found)


def same(one: Latents, other: Latents) -> bool:
    return torch.equal(one.video, other.video) and torch.equal(one.audio, other.audio)


def image_reference(media: Media, index: int, seed: int = 0, width: int = 64, height: int = 32) -> ReferenceInput:
    picture = media.picture(f"references[{index}].source", seed)
    return ReferenceInput(f"references[{index}]", "image", width, height, picture=picture)


def clip_reference(media: Media, index: int, frames: int = 22, *, sound: bool = True) -> ReferenceInput:
    clip = media.clip(f"references[{index}].source", frames)
    track = media.sound_of(clip) if sound else None
    return ReferenceInput(f"references[{index}]", "video", 32, 32, clip=clip, sound=track)


def voice_reference(media: Media, index: int, seconds: float = 2.0) -> ReferenceInput:
    return ReferenceInput(f"references[{index}]", "audio", sound=media.voice(f"references[{index}].source", seconds))

"""What diagnostics say of a request's media: what each file holds, and what of it went into the model.

    field   the input's own name, `keyframes[1]`; its sound beside pictures `keyframes[1].audio`
    kind    image, video, audio
    saw     width, height in pixels, upright; orientation, EXIF 1..8 of a picture, degrees clockwise of a clip; frames
            in the file; rate, pictures a second or Hz; channels, samples a channel
    got     width, height, frames (at 24 fps), or rate (32 kHz), channels, samples; latents; frame, of a guide

The figures of the file are taken anew, from its packets (a picture's from the picture itself), and only for a request
that asks; what went in is told by whoever encoded it. Fed by guides, references and sources; read by `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from h3runtime.core import FPS, SAMPLE_RATE, MediaFile
from h3runtime.engine.conditions.media_cache import Encoded
from h3runtime.errors import BadMedia
from h3runtime.media.intake.examine import Ask, ClipMeasure, Measured, SoundMeasure, measure
from h3runtime.media.pictures import measure_picture

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Given:
    """One medium of a request. field: as `diagnostics.inputs` names it. got: what went into the model."""

    field: str
    kind: Literal["image", "video", "audio"]
    file: MediaFile
    got: Figures


def got_picture(width: int, height: int, latents: int = 1) -> dict[str, float]:
    return {"width": width, "height": height, "frames": 1, "latents": latents}


def got_clip(width: int, height: int, frames: int, latents: int) -> dict[str, float]:
    return {"width": width, "height": height, "frames": frames, "rate": FPS, "latents": latents}


def got_sound(sound: Encoded, latents: int | None = None) -> dict[str, float]:
    return {"rate": SAMPLE_RATE, "channels": 2, "samples": sound.samples, "latents": latents or sound.latents}


def told_inputs(given: Sequence[Given]) -> tuple[dict[str, Any], ...]:
    """`{field, kind, saw, got}` of each medium, in order (service-contract, small print). BadMedia if one is gone."""
    media = [medium for medium in given if medium.kind != "image"]
    asks = [Ask(m.file.path, m.field, "clip" if m.kind == "video" else "sound") for m in media]
    measured = iter(measure(asks) if asks else ())
    return tuple(
        {"field": medium.field, "kind": medium.kind, "saw": dict(_saw(medium, measured)), "got": dict(medium.got)}
        for medium in given
    )


def _saw(medium: Given, measured: Iterator[Measured | BadMedia]) -> Figures:
    if medium.kind == "image":
        facts = measure_picture(medium.file.path, medium.file.field)
        return {"width": facts.width, "height": facts.height, "orientation": facts.orientation, "frames": 1}
    found = next(measured)
    if isinstance(found, BadMedia):
        raise found
    return _saw_clip(found.clip) if medium.kind == "video" else _saw_sound(found.sound)


def _saw_clip(clip: ClipMeasure | None) -> Figures:
    assert clip is not None
    return {
        "width": clip.width,
        "height": clip.height,
        "orientation": clip.rotation,
        "frames": clip.pictures,
        "rate": clip.rate,
    }


def _saw_sound(sound: SoundMeasure | None) -> Figures:
    assert sound is not None
    return {"rate": sound.rate, "channels": sound.channels, "samples": sound.samples}

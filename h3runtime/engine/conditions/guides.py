"""Guides -> keyframes: what is anchored on the target's own clock (dit-contract §8).

A guide is a picture or a clip on the target's canvas, a sound, or both. First and last frame, continued clips and
keyframes are all alike here; what sets them apart stands in the guide: where it is, how it is fitted, whether the text
encoder sees it. Fed by `gathering`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from h3runtime.core import GenerateSpec, GuideInput, Keyframe
from h3runtime.engine.conditions.media_cache import Encoded, Pixels
from h3runtime.engine.conditions.media_encoder import MediaEncoder, clip_steps
from h3runtime.engine.conditions.sound_cut import SoundCut
from h3runtime.engine.conditions.told_inputs import Given, got_clip, got_picture, got_sound
from h3runtime.packing.geometry import audio_latents, guide_audio_latents


@dataclass(frozen=True, slots=True)
class Anchored:
    """shown: uint8 [1, H, W, 3] on the canvas, for the text encoder; None if it doesn't see this guide."""

    keyframe: Keyframe
    shown: Pixels | None
    given: tuple[Given, ...]


def guide_steps(guide: GuideInput) -> int:
    """Pieces of progress that a guide counts for."""
    seen = 0 if guide.clip is None else clip_steps(guide.clip)
    return seen + (guide.picture is not None) + (guide.sound is not None)


def anchored(guide: GuideInput, spec: GenerateSpec, encoder: MediaEncoder) -> Anchored:
    """Read, fit and encode one guide. Its sound keeps the floor(A - 5/3 f) latents that fit behind its frame."""
    seen, heard = _seen(guide, spec, encoder), _heard(guide, spec, encoder)
    assert seen is not None or heard is not None, guide.field
    keyframe = Keyframe(guide.frame, None if seen is None else seen.latent, None if heard is None else heard.latent)
    shown = seen.shown if seen is not None and guide.shown else None
    return Anchored(keyframe, shown, tuple(_given(guide, spec, seen, heard)))


def _seen(guide: GuideInput, spec: GenerateSpec, encoder: MediaEncoder) -> Encoded | None:
    if guide.picture is not None:
        return encoder.picture(guide.picture, spec.width, spec.height, guide.fit)
    if guide.clip is not None:
        return encoder.clip(guide.clip, spec.width, spec.height, guide.fit)
    return None


def _heard(guide: GuideInput, spec: GenerateSpec, encoder: MediaEncoder) -> Encoded | None:
    if guide.sound is None:
        return None
    target = audio_latents(spec.frames)
    return encoder.sound(guide.sound, SoundCut("within", guide_audio_latents(target, target, guide.frame)))


def _given(guide: GuideInput, spec: GenerateSpec, seen: Encoded | None, heard: Encoded | None) -> Iterator[Given]:
    at = {"frame": guide.frame}
    if guide.picture is not None:
        yield Given(guide.field, "image", guide.picture, got_picture(spec.width, spec.height) | at)
    if guide.clip is not None and seen is not None:
        got = got_clip(spec.width, spec.height, guide.clip.frames, seen.latents)
        yield Given(guide.field, "video", guide.clip.file, got | at)
    if guide.sound is not None and heard is not None:
        name = guide.field if seen is None else f"{guide.field}.audio"
        yield Given(name, "audio", guide.sound.file, got_sound(heard) | at)

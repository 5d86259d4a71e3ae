"""Guides of every kind through the engine: one mechanism, wherever and whatever they are."""

from dataclasses import replace

import pytest
import torch

from h3runtime.conditioning.pieces import Vision
from h3runtime.core import ClipInput, GuideInput, KeyframeShape, Task
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.sound_cut import SoundCut
from h3runtime.errors import BadMedia
from tests.engine.conditioned import diagnostics_of, image_reference, latents_of, same

CANVAS = {"width": 64, "height": 64}


def test_a_clip_with_sound_is_anchored_with_both(make_spec, media, encoder) -> None:
    clip = media.clip("keyframes[0].video", 22)
    guide = GuideInput("keyframes[0]", 17, clip=ClipInput(clip.file, 0, 5), sound=media.sound_of(clip))
    spec = make_spec(task=Task.I2VA, frames=22, guides=(guide,), diagnostics=True, **CANVAS)
    conditions = conditions_of(spec, encoder)
    # A = 37; behind frame 17 there is room for floor(37 - 28.33) = 8 of the sound's 36 latents.
    assert conditions.keyframe_shapes == (KeyframeShape(17, 2, 8),)
    seen, heard = conditions.inputs
    assert seen["got"] == {"width": 64, "height": 64, "frames": 5, "rate": 24, "latents": 2, "frame": 17}
    assert (heard["field"], heard["got"]["latents"], heard["got"]["samples"]) == ("keyframes[0].audio", 8, 6400)


def test_a_lone_sound_is_a_guide(engine, make_spec, media) -> None:
    guide = GuideInput("keyframes[0]", 0, sound=media.voice("keyframes[0].audio", 0.5))
    spec = make_spec(task=Task.I2VA, frames=5, guides=(guide,), steps=1, **CANVAS)
    found = diagnostics_of(engine, spec)
    assert (found["rows"]["cond"], found["rows"]["cond_audio"]) == (0, 16)
    assert [row["field"] for row in found["inputs"]] == ["keyframes[0]"]
    assert not same(latents_of(engine, spec), latents_of(engine, replace(spec, guides=())))


def test_only_the_fit_tells_a_first_frame_from_a_keyframe_at_0(engine, make_spec, media) -> None:
    def made(guide: GuideInput):
        return latents_of(engine, make_spec(task=Task.I2VA, frames=5, guides=(guide,), steps=1, **CANVAS))

    picture = media.picture("first_frame")
    first = made(GuideInput("first_frame", 0, picture=picture, fit="stretch"))
    assert same(first, made(GuideInput("keyframes[0]", 0, picture=picture, fit="stretch")))
    assert not same(first, made(GuideInput("keyframes[0]", 0, picture=picture, fit="cover")))
    assert not same(first, made(GuideInput("keyframes[0]", 3, picture=picture, fit="stretch")))
    assert not same(first, made(GuideInput("first_frame", 0, picture=picture, fit="stretch", shown=True)))


def test_shown_guides_are_seen_by_the_text_encoder_unless_there_are_references(make_spec, media, encoder) -> None:
    picture = media.picture("first_frame")
    guides = (
        GuideInput("first_frame", 0, picture=picture, fit="stretch", shown=True),
        GuideInput("keyframes[0]", 2, picture=picture),
    )
    spec = make_spec(task=Task.I2VA, frames=5, guides=guides, **CANVAS)
    shown = conditions_of(spec, encoder)
    assert [p if isinstance(p, str) else "V" for p in shown.pieces] == ["<Picture 1>: ", "V", spec.prompt]
    assert [(s.frame, s.latent_frames) for s in shown.keyframe_shapes] == [(0, 1), (2, 1)]
    hybrid = conditions_of(replace(spec, task=Task.REF2VA, references=(image_reference(media, 0),)), encoder)
    (vision,) = (p for p in hybrid.pieces if isinstance(p, Vision))
    assert vision.pixels.shape == (1, 32, 64, 3) and len(hybrid.keyframes) == 2


def test_a_guide_of_one_frame_is_its_clips_first_picture(media, encoder) -> None:
    clip = media.clip("keyframes[0].video", 22)
    still = encoder.clip(replace(clip, frames=1), 64, 64, "cover")
    assert still.latent.shape == (1, 24, 1, 4, 4)


def test_a_long_sound_gives_the_latents_it_gives_in_whole(media, encoder) -> None:
    """The convolutions see 12 latents ahead, and sums over other lengths round otherwise."""
    sound = media.voice("keyframes[0].audio", 3.01)
    whole = encoder.sound(sound, SoundCut("whole")).latent
    cut = encoder.sound(sound, SoundCut("within", 40))
    assert cut.latent.shape[3] == 40 and cut.samples == 40 * 800
    assert float((cut.latent - whole[..., :40]).norm() / whole[..., :40].norm()) < 1e-6
    short = encoder.sound(sound, SoundCut("within", 200)).latent
    assert torch.equal(short, whole)


def test_a_sound_of_less_than_a_latent_is_bad(media, encoder) -> None:
    sound = media.voice("keyframes[0].audio", 0.02)
    with pytest.raises(BadMedia, match=r"keyframes\[0\].audio"):
        encoder.sound(sound, SoundCut("within", 40))

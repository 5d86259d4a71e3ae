"""Ref2VA through the engine: rows, order, and that every reference is heeded."""

import math

import numpy as np
import pytest

from h3runtime.conditioning.pieces import Vision
from h3runtime.core import GuideInput, ReferenceInput, Task
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.vision_size import features_of, patch_grid
from h3runtime.packing.geometry import audio_latents, latent_frames
from tests.engine.conditioned import (
    clip_reference,
    diagnostics_of,
    image_reference,
    latents_of,
    same,
    voice_reference,
)

FRAMES = 73
CANVAS = {"width": 64, "height": 64}


@pytest.fixture
def mixed(media):
    """2 pictures, a clip with its sound, a voice."""
    listed = (image_reference(media, 0), clip_reference(media, 1), image_reference(media, 2, 1, 32, 64))
    return (*listed, voice_reference(media, 3))


def test_a_mixed_request_is_packed_by_the_closed_formula_and_told(engine, make_spec, media, mixed) -> None:
    guide = GuideInput("keyframes[0]", 56, picture=media.picture("keyframes[0].image", 5))
    spec = make_spec(task=Task.REF2VA, frames=FRAMES, guides=(guide,), references=mixed, steps=1, **CANVAS)
    found = diagnostics_of(engine, spec)
    track, voice = 2 * math.floor(22 / 24 * 40), 2 * 80
    expected = [
        ("cond", 0, 2 * 2),
        ("ref_img", 0, 2 * 1),
        ("ref_audio", 1, track),
        ("ref_img", 1, latent_frames(22)),
        ("ref_img", 2, 1 * 2),
        ("ref_audio", 3, voice),
        ("audio", -1, 2 * audio_latents(FRAMES)),
        ("video", -1, latent_frames(FRAMES) * 4),
    ]
    segments = [(s["kind"], s["source"], s["stop"] - s["start"]) for s in found["segments"]]
    assert segments[0][0] == "text" and segments[1:] == expected
    rows = found["rows"]
    assert (rows["ref_audio"], rows["total"]) == (track + voice, sum(count for _, _, count in segments))
    # A row a byte in the tiny set's tokenizer; each vision block has a row before and one after it.
    labels = [f"<Picture {i}>: " for i in (1, 2)] + ["<Audio 1>: ", "<Video 1>: ", "<0.2 seconds>", "<Audio 2>: "]
    blocks = [features_of(patch_grid(*sides)) + 2 for sides in ((32, 64), (32, 32), (64, 32))]
    assert rows["text"] == sum(map(len, labels)) + sum(blocks) + len(spec.prompt)
    assert {"media_seconds", "text_seconds", "media_cache_misses"} <= set(found["conditioning"])
    _check_inputs(found["inputs"])


def _check_inputs(inputs) -> None:
    rows = {row["field"]: row for row in inputs}
    assert [(row["field"], row["kind"]) for row in inputs] == [
        ("keyframes[0]", "image"),
        ("references[0]", "image"),
        ("references[1]", "video"),
        ("references[1].audio", "audio"),
        ("references[2]", "image"),
        ("references[3]", "audio"),
    ]
    assert rows["keyframes[0]"]["got"] == {"width": 64, "height": 64, "frames": 1, "latents": 1, "frame": 56}
    assert rows["references[0]"]["saw"] == {"width": 80, "height": 48, "orientation": 1, "frames": 1}
    assert rows["references[0]"]["got"] == {"width": 64, "height": 32, "frames": 1, "latents": 1}
    assert rows["references[1]"]["saw"] == {"width": 32, "height": 32, "orientation": 0, "frames": 22, "rate": 24.0}
    assert rows["references[1]"]["got"] == {"width": 32, "height": 32, "frames": 22, "rate": 24, "latents": 7}
    assert rows["references[1].audio"]["saw"] == {"rate": 32000, "channels": 2, "samples": pytest.approx(29333, abs=32)}
    assert rows["references[3]"]["saw"] == {"rate": 32000, "channels": 1, "samples": 64000}
    assert rows["references[3]"]["got"] == {"rate": 32000, "channels": 2, "samples": 64000, "latents": 80}


def test_a_clip_without_its_sound_has_no_audio_rows(make_spec, media, encoder) -> None:
    spec = make_spec(task=Task.REF2VA, frames=5, references=(clip_reference(media, 0, 5, sound=False),), **CANVAS)
    conditions = conditions_of(spec, encoder)
    assert [(s.latent_frames, s.audio_latents) for s in conditions.reference_shapes] == [(2, 0)]
    assert next(p for p in conditions.pieces if isinstance(p, str)) == "<Video 1>: "


def test_every_reference_and_their_order_count(engine, make_spec, media) -> None:
    picture, voice = image_reference(media, 0), voice_reference(media, 1, 0.5)
    other_picture, longer = image_reference(media, 0, seed=9), voice_reference(media, 1, 0.6)

    def made(*references: ReferenceInput):
        return latents_of(engine, make_spec(task=Task.REF2VA, frames=5, references=references, steps=1, **CANVAS))

    base = made(picture, voice)
    assert same(base, made(picture, voice))
    changed = [(other_picture, voice), (picture, longer), (voice, picture), (picture,)]
    assert not any(same(base, made(*references)) for references in changed)


def test_the_encoder_sees_the_fitted_pixels_that_were_encoded(engine, make_spec, media, encoder) -> None:
    clip = clip_reference(media, 0, 39)
    spec = make_spec(task=Task.REF2VA, references=(clip, image_reference(media, 1)), **CANVAS)
    conditions = conditions_of(spec, encoder)
    labels = [piece for piece in conditions.pieces if isinstance(piece, str)]
    assert labels == [
        "<Audio 1>: ",
        "<Video 1>: ",
        "<0.2 seconds>",
        "<1.2 seconds>",
        "<Picture 1>: ",
        spec.prompt,
    ]
    first, second, picture = (piece.pixels for piece in conditions.pieces if isinstance(piece, Vision))
    frames = list(clip_frames(clip.clip, 32, 32, "stretch"))
    assert np.array_equal(np.concatenate([first, second]), np.stack(frames[::12]))
    assert picture.shape == (1, 32, 64, 3)
    whole = engine.models.vaes.video.encode_stream(iter(frames), 39)
    assert conditions.references[0].latent.equal(whole)

"""Sources and masks through the engine: what is kept comes back, what is generated is as without."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.core import ClipInput, GenerateSpec, MaskSpan, MediaFile, SourceInput
from h3runtime.denoiser.masks import resize_video_mask
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.mask_pixels import luminance, near_middles
from h3runtime.engine.conditions.sources import audio_mask
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from tests.clips import write_clip
from tests.engine.conditioned import latents_of, same

FRAMES = 5
LATENTS = 8
WHITE, BLACK = (np.full((24, 40), value, np.uint8) for value in (255, 0))
ALL, NOTHING = ((MaskSpan(0.0, FRAMES / 24, value),) for value in (1.0, 0.0))


@pytest.fixture
def source(media) -> SourceInput:
    clip = media.clip("source", FRAMES, width=96, height=48)
    return SourceInput(clip, media.sound_of(clip))


@pytest.fixture
def spec(make_spec, source) -> GenerateSpec:
    return make_spec(width=64, height=64, frames=FRAMES, source=source)


def masked(spec: GenerateSpec, **masks: object) -> GenerateSpec:
    return replace(spec, source=replace(spec.source, **masks))


def test_mask_0_returns_the_encoded_source_bit_for_bit(engine, spec, media) -> None:
    kept = latents_of(engine, masked(spec, video_mask=media.mask(BLACK), audio_mask=NOTHING))
    frames = clip_frames(spec.source.clip, 64, 64, "stretch")
    assert torch.equal(kept.video, engine.models.vaes.video.encode_stream(frames, FRAMES))
    sound = np.zeros((2, LATENTS * 800), np.float32)
    given = read_sound_in(spec.source.sound)[:, : LATENTS * 800]
    sound[:, : given.shape[1]] = given
    assert torch.equal(kept.audio, engine.models.vaes.audio.encode(torch.from_numpy(sound)[None]))


def test_mask_1_is_no_mask_bit_for_bit(engine, spec, media) -> None:
    free = latents_of(engine, replace(spec, source=None))
    assert same(free, latents_of(engine, masked(spec, video_mask=media.mask(WHITE), audio_mask=ALL)))
    assert same(free, latents_of(engine, spec))


def test_each_stream_is_kept_on_its_own(engine, spec, media) -> None:
    free = latents_of(engine, replace(spec, source=None))
    picture = latents_of(engine, masked(spec, video_mask=media.mask(BLACK)))
    sound = latents_of(engine, masked(spec, audio_mask=NOTHING))
    both = latents_of(engine, masked(spec, video_mask=media.mask(BLACK), audio_mask=NOTHING))
    assert torch.equal(picture.video, both.video) and torch.equal(sound.audio, both.audio)
    assert not torch.equal(picture.audio, both.audio) and not torch.equal(sound.video, both.video)
    # What is generated hears and sees what is kept.
    assert not torch.equal(picture.audio, free.audio) and not torch.equal(sound.video, free.video)


def test_a_half_of_the_picture_is_kept(engine, spec, media) -> None:
    half = np.where(np.arange(64) < 32, 0, 255).astype(np.uint8)[None].repeat(64, 0)
    made = latents_of(engine, masked(spec, video_mask=media.mask(half)))
    whole = latents_of(engine, masked(spec, video_mask=media.mask(BLACK)))
    assert torch.equal(made.video[..., :2], whole.video[..., :2])
    assert not torch.isclose(made.video[..., 2:], whole.video[..., 2:]).any()


def test_a_source_without_sound_leaves_the_sound_alone(spec, encoder) -> None:
    masks = conditions_of(masked(spec, sound=None), encoder).masks
    assert masks.audio is None and not masks.content.audio.any()
    assert masks.content.audio.shape == (1, 32, 2, LATENTS)


@pytest.mark.parametrize("frames,mask_frames", [(22, 9), (5, 9)])
def test_a_mask_clip_is_held_and_cut_to_the_target(media, make_spec, encoder, frames, mask_frames) -> None:
    pictures = np.zeros((9, 32, 32, 3), np.uint8)
    pictures[2:] = 255
    path = write_clip(media.folder / "mask.mkv", pictures)
    mask = ClipInput(MediaFile(path, "masks.video"), 0, mask_frames)
    source = SourceInput(media.clip("source", frames), video_mask=mask)
    spec = make_spec(width=32, height=32, frames=frames, source=source)
    made = conditions_of(spec, encoder).masks.video
    assert made.shape == (1, 1, frames, 4, 4)
    assert made[0, 0, :, 0, 0].tolist() == [0, 0] + [1] * (frames - 2)


def test_masks_are_told_as_they_are_stretched(spec, media, encoder) -> None:
    masks = replace(masked(spec, video_mask=media.mask(WHITE)), diagnostics=True)
    found = conditions_of(masks, encoder).inputs
    assert [(row["field"], row["kind"]) for row in found] == [
        ("source", "video"),
        ("source.audio", "audio"),
        ("masks.video", "image"),
    ]
    assert found[0]["got"] == {"width": 64, "height": 64, "frames": FRAMES, "rate": 24, "latents": 2}
    assert found[1]["got"] == {"rate": 32000, "channels": 2, "samples": 6400, "latents": LATENTS}
    assert found[2]["saw"]["width"] == 40 and found[2]["got"]["width"] == 64


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_pixels_near_middles_make_the_same_mask(height, width, frames, latents, seed) -> None:
    mask = np.random.default_rng(seed).integers(0, 256, (frames, 16 * height, 16 * width), dtype=np.uint8)
    few = np.stack([near_middles(frame) for frame in mask])
    whole, kept = (
        resize_video_mask(torch.from_numpy(m)[None, None].float() / 255, latents, height, width) for m in (mask, few)
    )
    assert torch.equal(whole, kept)


def test_hard_edges_of_a_mask_make_no_values_beyond() -> None:
    """A sharper filter would ring: a little of what is black would be generated."""
    edge = np.where(np.arange(30) < 15, 0, 255).astype(np.uint8)[None].repeat(20, 0)
    grey = luminance(np.repeat(edge[..., None], 3, 2), 128, 64)
    assert (grey[:, :60] == 0).all() and (grey[:, 68:] == 255).all()


def test_a_latent_of_sound_takes_the_span_its_middle_lies_in() -> None:
    mask = audio_mask([MaskSpan(0.0, 0.0375, 0.0), MaskSpan(0.0375, 0.1, 0.25)], 6)
    # Middles lie at 12.5, 37.5, 62.5 ms..; an end belongs to the next span.
    assert mask.shape == (1, 1, 2, 6)
    assert mask[0, 0].tolist() == [[0, 0.25, 0.25, 0.25, 1, 1]] * 2

"""Broken results are told from fine ones: every finding of the service contract, and none where there is none."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.core import Check
from h3runtime.errors import DegenerateOutput
from h3runtime.media.checks import (
    THRESHOLDS,
    LatentFigures,
    VideoChecks,
    check_audio,
    check_latents,
    refuse,
)
from h3runtime.media.tile_grid import luma_steps, tile_grid_score

RATE = 32_000


@dataclass(frozen=True)
class Axis:
    starts: tuple[int, ...]
    overlaps: tuple[int, ...]


# Conditioning contract §4.5: 640 and 320 pixels.
WIDE = Axis((0, 192, 384), (64, 64))
HIGH = Axis((0, 64), (192,))


def levels(check: Check) -> list[str]:
    return [level for level, _ in check.findings]


def texts(check: Check) -> str:
    return "; ".join(text for _, text in check.findings)


def tone(seconds: float = 1.0, amplitude: float = 0.1, fade: float = 0.2) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    envelope = np.clip((time - fade) / 0.1, 0, 1)
    return np.stack([amplitude * envelope * np.sin(2 * np.pi * f * time) for f in (440, 554)]).astype(np.float32)


def picture(height: int = 320, width: int = 640, seed: int = 0) -> np.ndarray:
    """Noise with a natural spectrum, uint8 [H, W, 3]."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    noise = rng.normal(size=frequency.shape) + 1j * rng.normal(size=frequency.shape)
    field = np.fft.irfft2(noise / frequency**1.7, s=(height, width))
    luma = np.clip(128 + 40 * (field - field.mean()) / field.std(), 0, 255)
    return np.repeat(luma.astype(np.uint8)[..., None], 3, axis=-1)


# --- latents ---------------------------------------------------------------------------------------------------------


def test_latents_of_a_real_clip_pass():
    check = check_latents({"video": LatentFigures(0.9, True), "audio": LatentFigures(1.1, True)}, synthetic=False)
    assert check == Check({"video_finite": True, "video_std": 0.9, "audio_finite": True, "audio_std": 1.1}, ())


@pytest.mark.parametrize(("std", "fails"), [(0.0, 1), (0.049, 1), (0.05, 0), (20.0, 0), (20.1, 1)])
def test_collapsed_and_diverged_latents_fail(std, fails):
    check = check_latents({"audio": LatentFigures(std, True)}, synthetic=False)
    assert levels(check) == ["fail"] * fails
    assert levels(check_latents({"audio": LatentFigures(std, True)}, synthetic=True)) == ["warn"] * fails


@pytest.mark.parametrize(
    "latent", [LatentFigures(1.0, False), LatentFigures(math.nan, True), LatentFigures(math.inf, True)]
)
def test_a_latent_that_is_not_finite_fails_whatever_the_weights(latent):
    check = check_latents({"video": latent}, synthetic=True)
    assert levels(check) == ["fail"]
    json.dumps(dict(check.figures), allow_nan=False)


# --- sound -----------------------------------------------------------------------------------------------------------


def test_a_tone_that_fades_in_has_no_finding():
    check = check_audio(tone(), synthetic=False)
    assert check.findings == ()
    assert check.figures["finite"] is True
    assert check.figures["peak"] == pytest.approx(0.1, abs=1e-3)
    assert check.figures["onset_dbfs"] == -120
    assert check.figures["clipped_share"] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("synthetic", [False, True])
def test_one_sample_that_is_not_finite_fails(value, synthetic):
    sound = tone()
    sound[1, 777] = value
    check = check_audio(sound, synthetic=synthetic)
    assert levels(check) == ["fail"]
    assert check.figures["finite"] is False
    json.dumps(dict(check.figures), allow_nan=False)


@pytest.mark.parametrize("level", [-1.0, -1e-4, 0.02, 1.0])
def test_a_constant_sound_fails(level):
    check = check_audio(np.full((2, RATE), level, np.float32), synthetic=False)
    assert levels(check) == ["fail"]
    assert "constant" in texts(check)
    assert check.figures["dc"] == pytest.approx(level)
    assert levels(check_audio(np.full((2, RATE), level, np.float32), synthetic=True)) == ["warn"]


def test_one_constant_channel_is_enough_and_ringing_at_the_ends_hides_nothing():
    sound = tone()
    sound[1] = -0.7
    sound[1, :500] += np.linspace(0.7, 0, 500)
    sound[1, -500:] += np.linspace(0, 0.7, 500)
    check = check_audio(sound, synthetic=False)
    assert levels(check) == ["fail"]
    assert "channel 1" in texts(check)


def test_an_offset_under_a_real_sound_is_no_constant():
    assert check_audio(tone() + np.float32(0.005), synthetic=False).findings == ()


def test_digital_silence_warns():
    for sound in (np.zeros((2, RATE), np.float32), np.full((2, RATE), 1e-5, np.float32)):
        check = check_audio(sound, synthetic=False)
        assert levels(check) == ["warn"]
        assert "silence" in texts(check)
    one_side = tone()
    one_side[0] = 0
    assert check_audio(one_side, synthetic=False).findings == ()


def test_clipping_warns_above_one_percent():
    sound = tone(amplitude=0.5)
    sound[:, 20_000:20_160] = 1
    assert check_audio(sound, synthetic=False).findings == ()
    sound[:, 20_000:20_700] = -1
    check = check_audio(sound, synthetic=False)
    assert levels(check) == ["warn"]
    assert "clipped" in texts(check)


@pytest.mark.parametrize(("amplitude", "warns"), [(0.013, False), (0.016, True)])
def test_sound_in_the_first_tenth_of_a_second_warns_above_minus_forty(amplitude, warns):
    """A sine of amplitude a has an RMS of a / sqrt(2): -40 dBFS is 0.01414."""
    check = check_audio(tone(amplitude=amplitude, fade=-1), synthetic=False)
    assert levels(check) == ["warn"] * warns
    assert check.figures["onset_dbfs"] == pytest.approx(20 * math.log10(amplitude / math.sqrt(2)), abs=0.1)


def test_no_samples_at_all_is_a_failure():
    assert levels(check_audio(np.zeros((2, 0), np.float32), synthetic=True)) == ["fail"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2), st.integers(1, 9000), st.floats(-1, 1), st.floats(0, 1), st.integers(0, 99))
def test_figures_are_always_finite_and_json(channels, samples, offset, amplitude, seed):
    noise = np.random.default_rng(seed).normal(size=(channels, samples)) * amplitude + offset
    check = check_audio(np.clip(noise, -1, 1).astype(np.float32), synthetic=False)
    json.dumps(dict(check.figures), allow_nan=False)


# --- pictures --------------------------------------------------------------------------------------------------------


def watched(
    frames: np.ndarray, chunks: tuple[int, ...] = (), *, finite: bool = True, std: float = 1.0, synthetic: bool = False
):
    watch = VideoChecks(WIDE, HIGH)
    for part in np.split(frames, chunks):
        watch.feed(part, finite=finite)
    return watch.result(latent_std=std, synthetic=synthetic)


def test_a_natural_picture_has_no_finding():
    check = watched(np.stack([picture(seed=s) for s in range(5)]))
    assert check.findings == ()
    assert check.figures["frames"] == 5
    assert check.figures["one_colour"] is False
    assert 0.9 < check.figures["tile_grid_score"] < 1.3
    assert 100 < check.figures["luma"] < 156


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=4), st.integers(0, 3))
def test_chunks_make_no_difference(cuts, seed):
    frames = np.stack([picture(64, 640, seed=seed + s) for s in range(9)])
    whole, parts = watched(frames), watched(frames, tuple(sorted(cuts)))
    assert whole == parts


def test_one_colour_fails_unless_the_latent_is_constant_too():
    frames = np.broadcast_to(np.array([90, 30, 200], np.uint8), (7, 64, 640, 3)).copy()
    frames[3, 5, 5] += 1
    check = watched(frames)
    assert levels(check) == ["fail"]
    assert check.figures["one_colour"] is True
    assert levels(watched(frames, synthetic=True)) == ["warn"]
    assert watched(frames, std=0.0).findings == ()


def test_one_frame_or_pixel_of_another_colour_is_enough():
    frames = np.full((7, 64, 640, 3), 90, np.uint8)
    frames[6, 63, 639, 2] = 93
    assert watched(frames).findings == ()
    frames = np.full((7, 64, 640, 3), 90, np.uint8)
    frames[5] = 120
    assert watched(frames, (3,)).findings == ()


def test_a_black_picture_warns_and_a_dark_one_does_not():
    black = np.random.default_rng(0).integers(0, 9, (5, 64, 640, 3), dtype=np.uint8)
    check = watched(black)
    assert levels(check) == ["warn"]
    assert "black" in texts(check)
    black[:, 30:40, 300:400] = 120
    assert watched(black).findings == ()


@pytest.mark.parametrize("synthetic", [False, True])
def test_pictures_made_of_values_that_are_not_finite_fail(synthetic):
    """NaN becomes an innocent 0 in uint8, so whoever made the bytes has to say so."""
    watch = VideoChecks()
    watch.feed(picture()[None])
    watch.feed(picture()[None], finite=False)
    watch.feed(picture()[None])
    check = watch.result(latent_std=1.0, synthetic=synthetic)
    assert levels(check) == ["fail"]
    assert check.figures["finite"] is False
    assert "tile_grid_score" not in check.figures


def tiled(offset: float) -> np.ndarray:
    """A picture whose tiles differ in brightness and were set edge to edge."""
    frame = picture().astype(float)
    signs = ((1, -1, 1), (-1, 1, -1))
    for row, top in enumerate(HIGH.starts):
        for column, left in enumerate(WIDE.starts):
            bottom, right = (*HIGH.starts, 320)[row + 1], (*WIDE.starts, 640)[column + 1]
            frame[top:bottom, left:right] += offset * signs[row][column]
    return np.clip(frame, 0, 255).astype(np.uint8)


def test_a_visible_tile_grid_warns():
    assert watched(tiled(0)[None]).findings == ()
    check = watched(tiled(6)[None])
    assert levels(check) == ["warn"]
    assert "tile grid" in texts(check)
    assert check.figures["tile_grid_score"] > 2


def test_the_seam_score_sees_tile_ends_too_and_ignores_an_object_s_edge():
    luma = picture()[..., 1].astype(np.float32)
    seam, thing = luma.copy(), luma.copy()
    for end in (192 + 64, 384 + 64):
        seam[:, end:] += 15
    thing[100:220, 192:] += 60
    axis = (WIDE.starts, WIDE.overlaps)
    assert tile_grid_score(luma_steps(seam), *axis) > THRESHOLDS.grid_score
    assert tile_grid_score(luma_steps(thing), *axis) < 1.3


def test_patch_borders_everywhere_are_no_tile_grid():
    luma = picture()[..., 1].astype(np.float32)
    for x in range(16, 640, 16):
        luma[:, x:] += 12 * (-1) ** (x // 16)
    assert tile_grid_score(luma_steps(luma), WIDE.starts, WIDE.overlaps) < 1.3


def test_one_tile_has_no_grid_and_a_flat_picture_scores_one():
    watch = VideoChecks(Axis((0,), ()), Axis((0,), ()))
    watch.feed(np.full((1, 64, 64, 3), 70, np.uint8))
    assert watch.result(latent_std=1.0, synthetic=True).figures["tile_grid_score"] == 1
    flat = np.zeros((2, 639))
    assert tile_grid_score(flat, WIDE.starts, WIDE.overlaps) == 1


def test_steps_are_means_over_stretches():
    luma = np.random.default_rng(0).normal(size=(70, 20)).astype(np.float32)
    steps = luma_steps(luma)
    assert steps.shape == (3, 19)
    np.testing.assert_allclose(steps[2], np.abs(np.diff(luma[64:], axis=1)).mean(axis=0), rtol=1e-5)


# --- what the engine does with them ----------------------------------------------------------------------------------


def test_failures_end_the_job_with_every_reason_and_warnings_are_passed_on():
    fine = Check({}, (("warn", "the sound is digital silence"),))
    bad = Check({}, (("fail", "one"), ("warn", "two"), ("fail", "three")))
    assert refuse({"audio": fine, "video": Check({})}) == ("audio: the sound is digital silence",)
    with pytest.raises(DegenerateOutput) as caught:
        refuse({"audio": fine, "video": bad}, stage="video_decode")
    assert [(o.field, o.message) for o in caught.value.offences] == [("video", "one"), ("video", "three")]
    assert caught.value.message == "one; three"
    assert caught.value.stage == "video_decode"


def test_public_case_a27_a_sound_stuck_at_minus_one_ends_the_job():
    with pytest.raises(DegenerateOutput, match="constant"):
        refuse({"audio": check_audio(np.full((2, RATE), -1, np.float32), synthetic=False)})


def test_public_case_a28_black_video_and_nan_sound_end_the_job_before_the_encoder():
    watch = VideoChecks()
    watch.feed(np.zeros((5, 64, 64, 3), np.uint8), finite=False)
    sound = np.full((2, RATE), np.nan, np.float32)
    checks = {"video": watch.result(latent_std=1.0, synthetic=False), "audio": check_audio(sound, synthetic=False)}
    with pytest.raises(DegenerateOutput) as caught:
        refuse(checks)
    assert {offence.field for offence in caught.value.offences} == {"video", "audio"}

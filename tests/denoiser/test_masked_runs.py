"""Whole runs with masks: what is kept comes back untouched, what is generated is what no mask would give, and every
row between the two reads a timestep of its own (dit-contract §8).

The recorded runs pin ComfyUI's numbers; these pin what a caller may rely on, at sizes that no file holds.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from h3runtime.core import Latents, PackedLayout, SamplerSettings, SegmentKind, TextFeatures
from h3runtime.denoiser.denoise import begin, denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.masks import Masks, TokenMasks, pool_video, resize_audio_mask, resize_video_mask
from h3runtime.denoiser.schedule import timesteps
from h3runtime.packing.layout import pack
from tests.denoiser import tiny

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
SETTINGS = SamplerSettings(3, seed=5)
ODD = (2, 3, 5)
EVEN = (2, 4, 6)


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def content(frames: int = 2, height: int = 4, width: int = 6) -> Latents:
    """Values of any size: kept ones needn't look like latents."""
    config = tiny.CONFIG
    video = tiny.noise(1, config.channels, frames, height, width, seed=40) * 3
    return Latents(video, tiny.noise(1, config.audio_channels, 2, 5, seed=41) * 3)


def text(rows: int) -> TextFeatures:
    return TextFeatures(tiny.noise(1, rows, tiny.CONFIG.text_dim, seed=2), np.ones(rows, dtype=np.int64))


def run(
    model: Dit, layout: PackedLayout, masks: Masks | None, asked: SamplerSettings = SETTINGS, **named: Any
) -> Latents:
    conditions = tiny.conditions(layout)
    named = {"device": CPU, "dtype": model.dtype, "masks": masks} | named
    return denoise(model, layout, text(layout.text_rows), *conditions, asked, **named)


def assert_same(got: Latents, want: Latents) -> None:
    assert torch.equal(got.video, want.video) and torch.equal(got.audio, want.audio)


@DTYPES
@pytest.mark.parametrize("sampler", ["euler", "res_multistep"])
@pytest.mark.parametrize("audio_shift", [3.0, 5.0])
def test_mask_zero_returns_the_content_bit_for_bit(dtype, sampler, audio_shift) -> None:
    given_ = content()
    masks = Masks(given_, torch.zeros(1, 1, *EVEN), torch.zeros(1, 1, 2, 5))
    asked = SamplerSettings(3, sampler, audio_shift=audio_shift, seed=5)
    assert_same(run(tiny.dit(dtype=dtype), tiny.layout(), masks, asked), given_)


@DTYPES
@pytest.mark.parametrize("share", [1.0, 0.5], ids=["from noise", "from halfway"])
@pytest.mark.parametrize("clip", [(1, 1, *EVEN), (5, 1, 70, 90)], ids=["latent size", "pixel size"])
def test_mask_one_equals_no_mask_bit_for_bit(dtype, share, clip) -> None:
    """From halfway the comparison starts from the same clip, which without masks is a plain initial latent."""
    model, layout, given_ = tiny.dit(dtype=dtype), tiny.layout(), content()
    asked = SamplerSettings(3, seed=5, denoise=share)
    ones = Masks(given_, torch.ones(clip), torch.ones(1, 1, 2, 9))
    plain = run(model, layout, None, asked, init=None if share == 1.0 else given_)
    assert_same(run(model, layout, ones, asked), plain)
    assert_same(run(model, layout, Masks(given_), asked), plain)


@given(st.sampled_from([1, 5, 22, 39]), st.integers(1, 80), st.integers(1, 80), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_white_stays_white_at_every_size(frames, height, width, h, w) -> None:
    """Weights of an interpolation need not add up to 1 in fp32; these do, or white would keep a little."""
    assert (resize_video_mask(torch.ones(frames, 1, height, width), 7, h, w) == 1).all()
    assert (resize_audio_mask(torch.ones(1, 1, 2, height), width) == 1).all()


def test_only_what_is_kept_is_kept() -> None:
    """One run with all kinds of masks: 0, 1 and between, both streams."""
    model, layout, given_ = tiny.dit(dtype=torch.float32), tiny.layout(), content()
    video, audio = uniform(1, 1, *EVEN), uniform(1, 1, 2, 5, seed=1)
    video[..., :2, :], video[..., 2:, 4:], audio[..., :2] = 0.0, 1.0, 0.0
    got = run(model, layout, Masks(given_, video, audio))
    for stream, mask, kept in ((got.video, video, given_.video), (got.audio, audio, given_.audio)):
        same = stream == kept
        assert same[(mask == 0).expand_as(stream)].all() and not same[(mask > 0).expand_as(stream)].any()


@DTYPES
def test_sound_alone_may_be_masked(dtype) -> None:
    """The picture is generated, and the network gets no mask for it; kept sound returns, the rest doesn't."""
    model, layout, given_ = tiny.dit(dtype=dtype), tiny.layout(), content()
    audio = torch.ones(1, 1, 2, 5)
    audio[..., :3] = 0.0
    named: dict[str, Any] = {"device": CPU, "dtype": dtype, "masks": Masks(given_, None, audio)}
    estimate, _ = begin(model, layout, text(9), *tiny.conditions(layout), SETTINGS, **named)
    assert estimate.keeper is not None and estimate.keeper.tokens is not None
    assert estimate.keeper.tokens.video is None and estimate.keeper.tokens.audio is not None
    got, plain = run(model, layout, Masks(given_, None, audio)), run(model, layout, None)
    assert torch.equal(got.audio[..., :3], given_.audio[..., :3])
    for stream in (got.audio[..., 3:] - given_.audio[..., 3:], got.video - given_.video, got.video - plain.video):
        assert float(stream.abs().max()) > 1e-2


def test_the_picture_alone_may_be_masked() -> None:
    model, layout, given_ = tiny.dit(dtype=torch.float32), tiny.layout(), content()
    video = torch.zeros(1, 1, *EVEN)
    video[..., 2:, :] = 1.0
    got = run(model, layout, Masks(given_, video))
    assert torch.equal(got.video[..., :2, :], given_.video[..., :2, :])
    assert float((got.audio - given_.audio).abs().max()) > 1e-2


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1.0, 0.93, 0.5, 0.02]), st.integers(0, 99), st.sampled_from([EVEN, ODD, (1, 5, 4)]))
def test_every_row_reads_the_timestep_of_its_own_mask(sigma, seed, size) -> None:
    """Written out: M = ceil(256 max m) / 256 of a token; label = min(1 - M sigma, pin) in fp32; pins .999 and 1."""
    layout = pack(*size, 5, np.ones(4, dtype=np.int64))
    model = tiny.dit(dtype=torch.float32)
    prepared = model.prepare(layout, model.refine(text(4).hidden), (), (), 1)
    video, audio = uniform(1, 1, *size, seed=seed), uniform(1, 1, 2, 5, seed=seed + 1)
    tokens = TokenMasks(pool_video(video), (audio * 256).ceil() / 256)
    found = model.clock(prepared, sigma, tokens)
    read = torch.tensor(found.timeline, dtype=torch.float64)[found.rows.index // 3]
    times = timesteps(sigma, 12.0, 3.0)
    want = [float(times.video)] * 4
    want += [label(m, times.sigma_audio, max(times.audio, 1.0)) for m in audio[0, 0].flatten().tolist()]
    want += [label(m, times.sigma_video, max(times.video, 0.999)) for m in largest_of_tokens(video)]
    assert read.tolist() == want
    assert {times.video, times.audio} <= set(found.timeline)


def label(mask: float, sigma: float, pin: float) -> float:
    pooled = np.float32(math.ceil(np.float32(mask) * np.float32(256))) / np.float32(256)
    return float(min(np.float32(1) - pooled * np.float32(sigma), np.float32(pin)))


def largest_of_tokens(mask: torch.Tensor) -> list[float]:
    """Frames, then rows of 2x2 squares; odd sides end with half a square."""
    frames = mask[0, 0]
    return [
        float(frame[i : i + 2, j : j + 2].max())
        for frame in frames
        for i in range(0, frame.shape[0], 2)
        for j in range(0, frame.shape[1], 2)
    ]


@DTYPES
def test_an_odd_canvas_keeps_and_generates_like_any_other(dtype) -> None:
    model, given_ = tiny.dit(dtype=dtype), content(*ODD)
    layout = pack(*ODD, 5, np.ones(9, dtype=np.int64))
    video = torch.zeros(1, 1, *ODD)
    video[..., 2:, :] = 1.0
    got = run(model, layout, Masks(given_, video, torch.zeros(1, 1, 2, 5)))
    assert got.video.shape == given_.video.shape and torch.equal(got.audio, given_.audio)
    assert torch.equal(got.video[..., :2, :], given_.video[..., :2, :])
    assert float((got.video[..., 2:, :] - given_.video[..., 2:, :]).abs().max()) > 1e-2
    assert_same(run(model, layout, Masks(given_, torch.ones(1, 1, *ODD))), run(model, layout, None, init=given_))


@DTYPES
def test_an_odd_call_is_the_even_one_with_its_first_line_again(dtype) -> None:
    """Latents are completed by their first line (§2.2), masks by their last (§8): then nothing tells them apart."""
    model, sigma = tiny.dit(dtype=dtype), 0.7
    odd, even = pack(*ODD, 5, np.ones(4, dtype=np.int64)), pack(*EVEN, 5, np.ones(4, dtype=np.int64))
    np.testing.assert_array_equal(odd.position_ids, even.position_ids)
    video, sound, mask = content(*ODD).video, content().audio, uniform(1, 1, *ODD)
    audio_mask = (uniform(1, 1, 2, 5, seed=1) * 256).ceil() / 256
    tall = torch.cat([video, video[..., :1, :]], dim=-2)
    wide = torch.cat([tall, tall[..., :1]], dim=-1)
    padded = F.pad(mask[0], (0, 1, 0, 1), mode="replicate")[None]
    answers = []
    for layout, picture, own in ((odd, video, mask), (even, wide, padded)):
        prepared = model.prepare(layout, model.refine(text(4).hidden), (), (), 1)
        answers.append(model(prepared, picture, sound, sigma, masks=TokenMasks(pool_video(own), audio_mask)))
    (got, got_sound), (want, want_sound) = answers
    assert torch.equal(got, want[..., :3, :5]) and torch.equal(got_sound, want_sound)


def test_a_kept_row_reads_the_level_of_a_condition() -> None:
    """Mask 0 is the level of a keyframe. In float64 they are two timesteps: a label is fp32 arithmetic (§8)."""
    layout, tokens = tiny.layout(references=0), TokenMasks(torch.zeros(1, 1, *EVEN), torch.zeros(1, 1, 2, 5))
    model = tiny.dit(dtype=torch.float32)
    found = model.clock(tiny.prepare(model, layout), 0.6, tokens)
    read = torch.tensor(found.timeline)[found.rows.index // 3]
    for kind in (SegmentKind.COND, SegmentKind.VIDEO):
        segment = layout.of_kind(kind)[0]
        assert (read[segment.start : segment.stop] == torch.tensor(0.999)).all()

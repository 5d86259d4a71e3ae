"""Masks around the network: sizes, pooling, and what kept content becomes on both sides of a call."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser import masks
from h3runtime.denoiser.carry import Carry, Streams
from h3runtime.denoiser.masks import Keeper, Masks

SETTINGS = SamplerSettings(steps=4)
STREAMS = Streams(torch.Size([1, 4, 2, 4, 6]), torch.Size([1, 8, 2, 5]))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


CONTENT = Latents(random(*STREAMS.video, seed=1), random(*STREAMS.audio, seed=2))
NOISE = random(STREAMS.video.numel() + STREAMS.audio.numel(), seed=3)


def keeper(video: torch.Tensor | None, audio: torch.Tensor | None, dtype: torch.dtype = torch.float32) -> Keeper:
    return Keeper.of(Masks(CONTENT, video, audio), NOISE, SETTINGS, dtype)


def test_a_mask_of_latent_size_is_left_as_it_is() -> None:
    video, audio = uniform(1, 1, 2, 4, 6), uniform(1, 1, 2, 5)
    assert torch.equal(masks.resize_video_mask(video, 2, 4, 6), video)
    assert torch.equal(masks.resize_audio_mask(audio, 5), audio)


def test_no_mask_is_all_ones() -> None:
    assert torch.equal(masks.resize_video_mask(None, 2, 4, 6), torch.ones(1, 1, 2, 4, 6))
    assert torch.equal(masks.resize_audio_mask(None, 5), torch.ones(1, 1, 2, 5))


def test_a_clip_of_masks_is_read_as_one_volume() -> None:
    """[F, 1, H, W]: frames become time. A mask that grows with time grows with latent time."""
    clip = torch.linspace(0, 1, 22).reshape(22, 1, 1, 1).expand(22, 1, 64, 96)
    resized = masks.resize_video_mask(clip, 7, 4, 6)
    assert resized.shape == (1, 1, 7, 4, 6)
    per_frame = resized[0, 0, :, 0, 0]
    assert (per_frame.diff() > 0).all()
    torch.testing.assert_close(resized, per_frame.reshape(1, 1, 7, 1, 1).expand_as(resized))


def test_half_pixel_centres() -> None:
    """Twice as many samples: each output is the mean of its two."""
    audio = torch.tensor([[[[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0]]]])
    torch.testing.assert_close(masks.resize_audio_mask(audio, 2), torch.tensor([[[[0.5, 0.0], [1.0, 0.25]]]]))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), st.integers(0, 99))
def test_pooled_masks_cover_their_tokens(frames, height, width, seed) -> None:
    mask = uniform(1, 1, frames, height, width, seed=seed)
    pooled = masks.pool_video(mask)
    assert pooled.shape == mask.shape
    assert (pooled >= mask).all() and (pooled * 256 == (pooled * 256).round()).all()
    for i in range(0, height, 2):
        for j in range(0, width, 2):
            token, own = pooled[..., i : i + 2, j : j + 2], mask[..., i : i + 2, j : j + 2]
            assert (token == token[..., :1, :1]).all()
            largest = own.amax((-2, -1))
            assert (token[..., 0, 0] < largest + 1 / 256).all()


def test_the_two_channels_keep_their_own_audio_masks() -> None:
    mask = torch.tensor([[[[0.1, 0.5], [0.9, 1.0]]]])
    assert torch.equal(masks.pool_audio(mask), torch.tensor([[[[26, 128], [231, 256]]]]) / 256)


def test_a_mask_that_generates_all_is_none_for_the_network() -> None:
    assert masks.for_network(torch.full((1, 1, 2, 2, 2), 0.999), torch.float32) is None
    assert keeper(None, None).tokens is None
    tokens = keeper(uniform(1, 1, 2, 4, 6), None, torch.bfloat16).tokens
    assert tokens is not None and tokens.audio is None and tokens.video is not None
    assert tokens.video.dtype == torch.bfloat16


def test_token_masks_lose_nothing_in_bf16() -> None:
    pooled = masks.pool_video(uniform(1, 1, 2, 4, 6))
    kept = masks.for_network(pooled, torch.bfloat16)
    assert kept is not None and torch.equal(kept.float(), pooled)


@pytest.mark.parametrize("sigma", [1.0, 0.8, 0.3])
def test_all_ones_change_nothing(sigma) -> None:
    x = random(NOISE.numel(), seed=4)
    assert torch.equal(keeper(None, None).show(x, sigma), x)
    assert torch.equal(keeper(None, None).restore(x), x)


@pytest.mark.parametrize("sigma", [1.0, 0.8, 0.3, 0.0])
def test_all_zeros_show_the_content_almost_clean(sigma) -> None:
    held = keeper(torch.zeros(1, 1, 2, 4, 6), torch.zeros(1, 1, 2, 5))
    video, audio = STREAMS.split(held.show(random(NOISE.numel(), seed=4), sigma))
    noise, _ = STREAMS.split(NOISE)
    torch.testing.assert_close(video, 0.999 * CONTENT.video + 0.001 * noise)
    # What the network reads of it is the clean sound, whatever the carry.
    torch.testing.assert_close(Carry.at(sigma, SETTINGS).to_network(audio), CONTENT.audio, rtol=1e-5, atol=1e-6)


def test_kept_content_comes_back_untouched() -> None:
    held = keeper(torch.zeros(1, 1, 2, 4, 6), torch.zeros(1, 1, 2, 5))
    video, audio = STREAMS.split(held.restore(random(NOISE.numel(), seed=5)))
    assert torch.equal(video, CONTENT.video) and torch.equal(audio, CONTENT.audio * 4)


def test_a_pixel_kept_inside_a_token_that_is_generated_shows_the_state() -> None:
    """m = 0 beside m = 1: the network reads the token as noise, so the kept pixel must look like it too."""
    video = torch.zeros(1, 1, 2, 4, 6)
    video[..., 0, 0] = 1.0
    x = random(NOISE.numel(), seed=4)
    shown, state = (STREAMS.split(t)[0] for t in (keeper(video, None).show(x, 0.7), x))
    torch.testing.assert_close(shown[..., :2, :2], state[..., :2, :2])
    assert not torch.allclose(shown[..., 2:, 2:], state[..., 2:, 2:])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.sampled_from([1.0, 0.9, 0.4]))
def test_what_is_shown_lies_between_content_and_state(seed, sigma) -> None:
    held = keeper(uniform(1, 1, 2, 4, 6, seed=seed), uniform(1, 1, 2, 5, seed=seed + 1))
    x = random(NOISE.numel(), seed=4)
    shown, content = held.show(x, sigma), held.injected(sigma)
    low, high = torch.minimum(x, content), torch.maximum(x, content)
    assert (shown >= low - 1e-5).all() and (shown <= high + 1e-5).all()

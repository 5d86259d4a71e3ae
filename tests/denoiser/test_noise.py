"""Noise: one stream a request, restarted for every condition, the same on every device."""

import pytest
import torch

from h3runtime.denoiser import noise


def test_audio_continues_where_video_stopped() -> None:
    drawn = noise.target_noise(5, 2, 4, 6, 8)
    source = torch.Generator().manual_seed(5)
    assert torch.equal(drawn.video, torch.randn(1, 24, 2, 4, 6, generator=source))
    assert torch.equal(drawn.audio, torch.randn(1, 32, 2, 8, generator=source))


def test_channels_are_the_networks() -> None:
    drawn = noise.target_noise(5, 2, 4, 6, 8, channels=3, audio_channels=5)
    assert drawn.video.shape == (1, 3, 2, 4, 6) and drawn.audio.shape == (1, 5, 2, 8)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_only_the_low_32_bits_of_a_seed_count(seed) -> None:
    first = noise.target_noise(seed, 2, 2, 2, 2)
    second = noise.target_noise(seed + 2**32, 2, 2, 2, 2)
    assert torch.equal(first.video, second.video) and torch.equal(first.audio, second.audio)


def test_any_64_bit_seed_is_taken_and_global_state_left_alone() -> None:
    before = torch.get_rng_state()
    for seed in (0, 2**63 - 1, 2**63, 2**64 - 1):
        noise.target_noise(seed, 2, 2, 2, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_seeds_differ() -> None:
    assert not torch.equal(noise.target_noise(1, 2, 2, 2, 2).video, noise.target_noise(2, 2, 2, 2, 2).video)


def test_conditions_share_the_stream_of_the_target() -> None:
    """dit-contract §5.3: equal leading values, in row layout."""
    short, long = torch.zeros(3, 96), torch.zeros(9, 96)
    first, second = (noise.visual_condition_rows(rows, 7) for rows in (short, long))
    assert torch.equal(first.flatten()[:96], second.flatten()[:96])
    target = noise.target_noise(7, 2, 4, 6, 8).video.flatten()
    torch.testing.assert_close(first.flatten()[:16] * 1000, target[:16], rtol=1e-5, atol=0)


def test_a_condition_is_one_part_in_a_thousand_noise() -> None:
    rows = torch.full((400, 96), 2.0)
    got = noise.visual_condition_rows(rows, 0)
    assert float((got - 0.999 * rows).std()) == pytest.approx(1e-3, rel=0.02)


def test_sound_is_clean_unless_its_level_is_overridden() -> None:
    rows = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    assert noise.audio_condition_rows(rows, 3) is rows
    got = noise.audio_condition_rows(rows, 3, 0.75)
    drawn = torch.randn(6, 32, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(got, 0.75 * rows + 0.25 * drawn)


def test_the_seed_after_the_last_is_the_first() -> None:
    rows = torch.zeros(2, 32)
    got = noise.audio_condition_rows(rows, 2**64 - 1, 0.5)
    assert torch.equal(got, noise.noised_rows(rows, 0, 0.5))

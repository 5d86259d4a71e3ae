"""The distance of two sounds: cases with a known answer, an evaluation by other means, and blocks of any size."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h3runtime.media.log_mel import LogMelDistance, mel_filters

RATE = 32_000
Sound = NDArray[np.float64]


def distance(a: Sound, b: Sound, cuts: tuple[int, ...] = (), rate: int = RATE) -> float:
    measured = LogMelDistance(rate)
    edges = [0, *cuts, a.shape[1]]
    for begin, end in pairwise(edges):
        measured.feed(a[:, begin:end], b[:, begin:end])
    return measured.finish()


def noise(seed: int, samples: int, channels: int = 2) -> Sound:
    return 0.1 * np.random.default_rng(seed).standard_normal((channels, samples))


def by_other_means(a: Sound, b: Sound) -> float:
    """scipy's transform, and filters written as loops. Lengths of whole windows only."""
    logs = []
    edges = [700 * (10 ** (k / 65 * 2595 * np.log10(1 + 16000 / 700) / 2595) - 1) for k in range(66)]
    for sound in (a, b):
        _, _, spectra = scipy.signal.stft(
            sound, RATE, window="hann", nperseg=1024, noverlap=768, boundary=None, padded=False, scaling="spectrum"
        )
        power = np.abs(2 * spectra) ** 2
        bands = []
        for low, middle, high in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
            band = np.zeros_like(power[:, 0])
            for k in range(513):
                f = k * RATE / 1024
                if low < f < high:
                    band = band + power[:, k] * (
                        (f - low) / (middle - low) if f <= middle else (high - f) / (high - middle)
                    )
            bands.append(10 * np.log10(np.maximum(band, 1e-10)))
        logs.append(np.stack(bands))
    return float(np.abs(logs[0] - logs[1]).mean())


def test_it_agrees_with_an_evaluation_by_other_means() -> None:
    a = noise(1, 1024 + 256 * 20)
    b = np.concatenate([a[:1] * 0.3, noise(2, a.shape[1], 1)])
    assert distance(a, b) == pytest.approx(by_other_means(a, b), rel=1e-9)


def test_equal_sounds_are_at_no_distance() -> None:
    assert distance(noise(1, 5000), noise(1, 5000)) == 0


@pytest.mark.parametrize("gain", [0.5, 2.0, 10.0])
def test_a_gain_is_its_decibels(gain: float) -> None:
    assert distance(noise(1, 20_000), gain * noise(1, 20_000)) == pytest.approx(abs(20 * np.log10(gain)))


def test_a_full_scale_tone_in_the_middle_of_a_bin_has_no_decibels() -> None:
    """1 kHz is bin 32; with the bins beside it a quarter as strong, its mels are known, and all others silent."""
    tone = np.sin(2 * np.pi * 1000 * np.arange(4096) / RATE)[None]
    power = np.zeros(513)
    power[31:34] = 0.25, 1, 0.25
    expected = (10 * np.log10(np.maximum(mel_filters(RATE) @ power, 1e-10)) + 100).mean()
    assert distance(tone, np.zeros_like(tone)) == pytest.approx(expected, abs=1e-6)


def test_what_is_below_the_floor_is_silent() -> None:
    assert distance(np.zeros((1, 4096)), 1e-7 * noise(1, 4096, 1)) == 0


def test_the_order_does_not_matter() -> None:
    assert distance(noise(1, 9000), noise(2, 9000)) == pytest.approx(distance(noise(2, 9000), noise(1, 9000)))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4000), st.lists(st.integers(0, 4000), max_size=6))
def test_blocks_of_any_size_give_the_same(samples: int, cuts: list[int]) -> None:
    a, b = noise(1, samples), noise(2, samples)
    inside = tuple(sorted(cut for cut in cuts if cut <= samples))
    assert distance(a, b, inside) == pytest.approx(distance(a, b))


@pytest.mark.parametrize("samples", [100, 1023, 1025, 1280, 1281, 5000])
def test_the_last_sample_counts(samples: int) -> None:
    a = noise(1, samples)
    b = a.copy()
    b[:, -1] += 0.5
    assert distance(a, b) > 0


def test_nothing_is_at_no_distance() -> None:
    assert LogMelDistance(RATE).finish() == 0
    assert distance(np.zeros((2, 0)), np.zeros((2, 0))) == 0


@pytest.mark.parametrize("rate", [8000, 32_000, 44_100, 48_000, 192_000])
def test_triangles_add_up_to_one_between_their_peaks(rate: int) -> None:
    filters = mel_filters(rate)
    assert filters.shape[0] == (64 if rate <= 48_000 else len(filters)) and filters.any(axis=1).all()
    if rate <= 48_000:
        peaks = np.flatnonzero(filters[0])[-1], np.flatnonzero(filters[-1])[0]
        assert filters.sum(axis=0)[peaks[0] + 1 : peaks[1]] == pytest.approx(1)

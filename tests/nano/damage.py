"""What a small, imperfect VAE does to a clip, by plain arithmetic: for tests that the judge isn't led astray by it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, signal

from h3runtime.core import SAMPLE_RATE


def damaged_frames(
    frames: NDArray[np.uint8], rng: np.random.Generator, *, blur: float = 1.0, noise: float = 0.03, shift: float = 0.05
) -> NDArray[np.uint8]:
    """Blurred by `blur` pixels, each channel off by up to `shift`, noise per pixel and per block of 16."""
    count, height, width, _ = frames.shape
    values = ndimage.gaussian_filter(frames.astype(np.float32), (0, blur, blur, 0))
    values *= 1 + rng.uniform(-shift, shift, 3).astype(np.float32)
    blocks = rng.standard_normal((count, -(-height // 16), -(-width // 16), 3), np.float32) * noise * 255
    values += blocks.repeat(16, 1).repeat(16, 2)[:, :height, :width]
    values += rng.standard_normal(values.shape, np.float32) * noise * 255
    return values.round().clip(0, 255).astype(np.uint8)


def damaged_sound(samples: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Smeared by 10 ms, nothing above 4 kHz, white noise 20 dB below the sound."""
    smeared = _smeared(samples)
    low = signal.sosfiltfilt(signal.butter(6, 4000, fs=SAMPLE_RATE, output="sos"), smeared)
    level = float(np.sqrt(np.square(low).mean()))
    return (low + rng.standard_normal(low.shape) * level / 10).astype(np.float32)


def _smeared(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """The loudness of every frequency averaged over 10 ms, its phase kept."""
    width, hop = SAMPLE_RATE // 50, SAMPLE_RATE // 400
    _, _, waves = signal.stft(samples, nperseg=width, noverlap=width - hop)
    loudness = ndimage.uniform_filter1d(np.abs(waves), 5, axis=-1)
    _, smeared = signal.istft(loudness * np.exp(1j * np.angle(waves)), nperseg=width, noverlap=width - hop)
    return np.asarray(smeared[:, : samples.shape[1]], np.float64)

"""How different two sounds are to a listener: the mean absolute difference of their log-mel spectra, in dB.

Does: take blocks of two sounds as they come and hold on to less than one window of each. Does not: align, resample or
read them. performance.md defines the measure by its sizes (64 mels, windows of 1,024 every 256 samples); what it leaves
open is settled here:

    window     Hann, periodic; the first begins at sample 0, the last is filled up with zeros
    power      |spectrum|^2, scaled so that a full-scale sine in the middle of a bin has power 1 there (0 dB)
    mels       triangles of height 1 whose corners lie evenly on 2595 log10(1 + f / 700) from 0 to half the rate;
               one so narrow that no bin falls into it is left out (rates above about 100 kHz)
    log        10 log10(max(power, 1e-10)): nothing is quieter than -100 dB, so silence differs from rounding by 0

    sounds [C, n], windows [C, frames, 1024], spectra [C, frames, 513], mels [C, frames, 64]
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Sound = NDArray[np.float64]

WINDOW: Final = 1024
HOP: Final = 256
MELS: Final = 64
FLOOR: Final = 1e-10
HANN: Final = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)


class LogMelDistance:
    """Feed pairs of blocks, then ask `finish` once."""

    def __init__(self, rate: int) -> None:
        self._filters = mel_filters(rate)
        self._held: tuple[Sound, Sound] | None = None
        self._sum = 0.0
        self._count = 0

    def feed(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> None:
        """[C, n] twice, any n, the same C as before."""
        first, second = a.astype(np.float64), b.astype(np.float64)
        if self._held is not None:
            first = np.concatenate([self._held[0], first], axis=1)
            second = np.concatenate([self._held[1], second], axis=1)
        frames = max(0, (first.shape[1] - WINDOW) // HOP + 1)
        self._measure(first, second, frames)
        self._held = first[:, frames * HOP :], second[:, frames * HOP :]

    def finish(self) -> float:
        """dB, 0 for equal sounds and for none. Measures what is left since the last whole window."""
        if self._held is not None:
            left = self._held[0].shape[1]
            # After a window its last 768 samples are held as well, and have been measured.
            if left > (WINDOW - HOP if self._count else 0):
                fill = ((0, 0), (0, WINDOW - left))
                self._measure(np.pad(self._held[0], fill), np.pad(self._held[1], fill), 1)
        return self._sum / max(self._count, 1)

    def _measure(self, a: Sound, b: Sound, frames: int) -> None:
        if frames:
            difference = np.abs(self._log_mel(a, frames) - self._log_mel(b, frames))
            self._sum += float(difference.sum())
            self._count += difference.size

    def _log_mel(self, sound: Sound, frames: int) -> Sound:
        windows = np.lib.stride_tricks.sliding_window_view(sound, WINDOW, axis=1)[:, ::HOP][:, :frames]
        spectra = np.fft.rfft(windows * HANN, axis=2) * (2 / HANN.sum())
        power = np.square(np.abs(spectra)) @ self._filters.T
        levels: Sound = 10 * np.log10(np.maximum(power, FLOOR))
        return levels


def mel_filters(rate: int) -> Sound:
    """[mels, 513] weights of the spectrum's bins; `rate` in samples a second."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = np.arange(WINDOW // 2 + 1) * (rate / WINDOW)
    below, peak, above = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    weights = np.maximum(0, np.minimum((bins - below) / (peak - below), (above - bins) / (above - peak)))
    filters: Sound = weights[weights.any(axis=1)]
    return filters

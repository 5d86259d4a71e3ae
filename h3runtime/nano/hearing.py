"""What is to be heard in a clip of the little world, from its samples alone: no scene, no learned model.

    samples float32 [2, N] at 32 kHz
      -> presence by loudness -> which of `world.PITCHES` are in the spectrum
      -> per pitch, its level over time: heterodyned to 0 Hz, then a window of 50 ms
         -> onsets (steep rises), envelope (the nearest of five), pan (level left to level right)
      -> timbre of a lone tone by its harmonics

All pitches and harmonics are multiples of 40 Hz apart by at least 40, where the window has its zeros: steady tones
don't hear each other. Fed by `judge` and by tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from h3runtime.core import FPS, SAMPLE_RATE
from h3runtime.nano.world import PITCHES, TIMBRES

Levels = NDArray[np.float64]

PRESENT: Final = 0.02
"""RMS of a sound; the quietest scene of the world has 0.05, its loudest silence 0."""
BLOCK: Final = 80
"""Samples per value of a level: 400 Hz."""
RATE: Final = SAMPLE_RATE / BLOCK
WINDOW: Final = 20
"""Values under a level's window: 50 ms."""
TOLERANCE: Final = 0.04
"""A tone is a pitch if it is off by at most this share."""
LEAST_SHARE: Final = 0.04
"""Energy of a second pitch, of the first's; the world has 0.1 and more."""
LEAST_TONE: Final = 0.2
"""Energy of the strongest pitch, of the whole sound's: less is noise."""
STEEP: Final = 0.3
"""Rise of a level within 40 ms that is an onset, of the level's maximum."""
PLUCK_SECONDS: Final = 0.13
AUDIBLE: Final = 0.1
"""Level at which a tone's pan can be told, of the level's maximum."""


@dataclass(frozen=True, slots=True, eq=False)
class Tone:
    """shape: whose pitch it is. envelope: steady, rising, falling, begins or plucks. onsets: seconds.

    x: where it is heard, 0 left to 1 right, and level: its amplitude, both float64 [F]; x is NaN where it is too quiet.
    """

    shape: str
    pitch: float
    envelope: str
    onsets: tuple[float, ...]
    x: NDArray[np.float64]
    level: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sounds:
    """tones: from low to high. timbre: of `world.TIMBRES`, None unless there is exactly one tone."""

    present: bool
    tones: tuple[Tone, ...] = ()
    timbre: str | None = None


def listen(samples: NDArray[np.float32], frames: int) -> Sounds:
    """Everything that is to be heard in float32 [2, N] that belongs to `frames` frames."""
    waves = np.asarray(samples, np.float64)
    if waves.shape[-1] < SAMPLE_RATE // 20 or float(np.sqrt(np.square(waves).mean())) < PRESENT:
        return Sounds(False)
    energies = _energies(waves)
    tones = tuple(_tone(waves, shape, frames) for shape in _shapes_heard(waves, energies))
    return Sounds(True, tones, _timbre(energies, tones[0].shape) if len(tones) == 1 else None)


def _energies(waves: Levels) -> dict[float, float]:
    """Energy near each pitch and its second and third harmonic, by Hz, of both channels together."""
    count = waves.shape[-1]
    power = np.square(np.abs(np.fft.rfft(waves))).sum(0) * 2 / count
    found: dict[float, float] = {}
    for frequency in {n * pitch for pitch in PITCHES.values() for n in (1, 2, 3)}:
        reach = max(TOLERANCE * frequency, 2 * SAMPLE_RATE / count)
        low, high = (round((frequency + side * reach) * count / SAMPLE_RATE) for side in (-1, 1))
        found[frequency] = float(power[low : high + 1].sum())
    return found


def _shapes_heard(waves: Levels, energies: Mapping[float, float]) -> list[str]:
    strongest = max(energies[pitch] for pitch in PITCHES.values())
    if strongest < LEAST_TONE * float(np.square(waves).sum()):
        return []
    heard = [shape for shape, pitch in PITCHES.items() if energies[pitch] >= LEAST_SHARE * strongest]
    return sorted(heard, key=PITCHES.__getitem__)


def _timbre(energies: Mapping[float, float], shape: str) -> str:
    """The timbre whose second and third harmonic, as shares of the first, are nearest."""
    amplitudes = [np.sqrt(energies[n * PITCHES[shape]]) for n in (1, 2, 3)]
    ratios = np.array(amplitudes[1:]) / amplitudes[0]
    padded = {name: np.array((*harmonics, 0.0, 0.0)[1:3]) for name, harmonics in TIMBRES.items()}
    return min(padded, key=lambda name: float(np.linalg.norm(ratios - padded[name])))


def _tone(waves: Levels, shape: str, frames: int) -> Tone:
    left, right = levels = _levels(waves, PITCHES[shape])
    both = np.hypot(left, right)[: int(frames / FPS * RATE)]
    onsets = _onsets(both)
    at = np.minimum(np.arange(frames) / FPS * RATE, levels.shape[1] - 1)
    sides = [np.interp(at, np.arange(levels.shape[1]), side) for side in (left, right)]
    level = np.hypot(*sides)
    x = np.where(level > AUDIBLE * both.max(), np.arctan2(sides[1], sides[0]) * 2 / np.pi, np.nan)
    return Tone(shape, PITCHES[shape], _envelope(both, onsets), onsets, x, level)


def _levels(waves: Levels, pitch: float) -> Levels:
    """The amplitude of one pitch in each channel, at `RATE`: [2, n]."""
    count = waves.shape[-1] // BLOCK
    wave = np.exp(-2j * np.pi * pitch / SAMPLE_RATE * np.arange(count * BLOCK))
    blocks = (waves[:, : count * BLOCK] * wave).reshape(2, count, BLOCK).mean(-1)
    levels: Levels = 2 * np.abs(signal.fftconvolve(blocks, _window()[None], "same", axes=1))
    return levels


def _window() -> Levels:
    window: Levels = signal.windows.hann(WINDOW + 1)
    window /= window.sum()
    return window


def _onsets(level: Levels) -> tuple[float, ...]:
    """Seconds of steep rises. A tone that is there from the beginning has one at about 0."""
    side = WINDOW * 2 // 5
    padded = np.concatenate([np.zeros(2 * side), level, np.full(2 * side, level[-1])])
    rise = padded[2 * side :] - padded[: -2 * side]
    peaks, _ = signal.find_peaks(rise, height=STEEP * level.max(), distance=int(0.1 * RATE))
    # A block's value stands for its middle.
    return tuple(max(0.0, (float(peak) - side + 0.5) / RATE) for peak in peaks)


def _envelope(level: Levels, onsets: tuple[float, ...]) -> str:
    """The nearest of the five envelopes of the world, each seen through the same window and at its best gain."""
    seconds: Levels = (np.arange(len(level), dtype=np.float64) + 0.5) / RATE
    share = seconds / seconds[-1]
    kinds = {"steady": np.ones_like(share), "rising": 0.15 + 0.85 * share, "falling": 1 - 0.85 * share}
    late = [onset for onset in onsets if onset > 0.1]
    if late:
        kinds["begins"] = (seconds >= late[0]).astype(np.float64)
    if onsets:
        kinds["plucks"] = np.max([_pluck(seconds - onset) for onset in onsets], 0)
    return max(kinds, key=lambda kind: _likeness(level, np.convolve(kinds[kind], _window(), "same")))


def _pluck(since: Levels) -> Levels:
    return np.where(since >= 0, np.exp(-np.maximum(since, 0) / PLUCK_SECONDS), 0.0)


def _likeness(level: Levels, kind: Levels) -> float:
    return float(level @ kind / (np.linalg.norm(level) * np.linalg.norm(kind) + 1e-12))

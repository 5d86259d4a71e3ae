"""Scenes as stereo sound: a tone per actor, its pitch from the shape, its rhythm from the motion, its pan from x.

    bounce: a pluck at every impact        appear: the tone starts with the actor
    grow, shrink: louder, softer           all else: a steady tone

All tones are sines of absolute time, so a steady tone looks the same in every audio latent. Many clips at once, on any
device; float32 at 32 kHz.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import FPS, SAMPLE_RATE, SAMPLES_PER_LATENT
from h3runtime.nano.world import PITCHES, TIMBRES, Actor, Scene, Track, track
from h3runtime.packing.geometry import audio_latents

LOUDNESS: Final = 0.3
"""Amplitude of a lone actor's tone; two share it."""
FADE_SECONDS: Final = 0.02
PLUCK_SECONDS: Final = 0.13
"""In which a pluck falls to 1/e."""
ENVELOPE_RATE: Final = 400
"""Envelopes and pans are computed at this rate and interpolated."""
TONES: Final = tuple((shape, timbre) for shape in PITCHES for timbre in TIMBRES)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Tones played together: `clips` [n] they belong to, gains [n, 2, m] over the whole clip at `ENVELOPE_RATE`, tones
    [n] into `TONES`."""

    clips: NDArray[np.int64]
    gains: NDArray[np.float32]
    tones: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Everything that `play` needs of B scenes, as arrays; silent scenes are in no part."""

    clips: int
    samples: int
    parts: tuple[Part, ...]


def sound(scenes: Sequence[Scene], frames: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Samples float32 [B, 2, 800 A] of the scenes."""
    return play(compose(scenes, frames), device)


def compose(scenes: Sequence[Scene], frames: int) -> Score:
    """Who sounds when and how loud: plain arrays, which another process may make ahead of time."""
    samples = audio_latents(frames) * SAMPLES_PER_LATENT
    parts = []
    for index in range(max(len(scene.actors) for scene in scenes)):
        clips = [i for i, scene in enumerate(scenes) if scene.sound and len(scene.actors) > index]
        if clips:
            parts.append(_part(scenes, clips, index, frames, samples))
    return Score(len(scenes), samples, tuple(parts))


def _part(scenes: Sequence[Scene], clips: Sequence[int], index: int, frames: int, samples: int) -> Part:
    actors = [scenes[i].actors[index] for i in clips]
    levels = np.array([LOUDNESS / len(scenes[i].actors) for i in clips]).reshape(-1, 1, 1)
    gains = np.stack([_gains(a, track(a, frames), samples) for a in actors]) * levels
    tones = [TONES.index((a.shape, scenes[i].timbre)) for a, i in zip(actors, clips, strict=True)]
    return Part(np.array(clips, np.int64), gains.astype(np.float32), np.array(tones, np.int64))


def play(score: Score, device: torch.device | str = "cpu") -> torch.Tensor:
    """Samples float32 [B, 2, 800 A] of a score."""
    out = torch.zeros(score.clips, 2, score.samples, device=device)
    time = torch.arange(score.samples, device=device, dtype=torch.float64) / SAMPLE_RATE
    tones = torch.stack([_tone(time, PITCHES[shape], timbre) for shape, timbre in TONES])
    for part in score.parts:
        gains = torch.from_numpy(part.gains).to(device)
        smooth = torch.nn.functional.interpolate(gains, size=score.samples, mode="linear", align_corners=True)
        played = smooth * tones[torch.from_numpy(part.tones).to(device)].unsqueeze(1)
        out.index_add_(0, torch.from_numpy(part.clips).to(device), played)
    return out


def voice(timbre: str, pitch: float, latents: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A steady tone on both channels, as a reference of a timbre: float32 [2, 800 latents]."""
    time = torch.arange(latents * SAMPLES_PER_LATENT, device=device, dtype=torch.float64) / SAMPLE_RATE
    return (0.7 * LOUDNESS * _tone(time, pitch, timbre)).expand(2, -1).clone()


def _tone(time: torch.Tensor, pitch: float, timbre: str) -> torch.Tensor:
    harmonics = TIMBRES[timbre]
    scale = 1 / math.sqrt(sum(a * a for a in harmonics))
    waves = [a * scale * torch.sin(2 * math.pi * pitch * (n + 1) * time) for n, a in enumerate(harmonics)]
    return torch.stack(waves).sum(0).float()


def _gains(actor: Actor, seen: Track, count: int) -> NDArray[np.float64]:
    """[2, n] at `ENVELOPE_RATE`: the envelope of a clip times what each channel gets of it (constant power)."""
    seconds = np.linspace(0, count / SAMPLE_RATE, max(2, round(count / SAMPLE_RATE * ENVELOPE_RATE)))
    frame = np.minimum(seconds * FPS, len(seen.x) - 1)
    x = np.interp(frame, np.arange(len(seen.x)), seen.x)
    angle = np.clip(x, 0, 1) * np.pi / 2
    gains: NDArray[np.float64] = _envelope(actor, seen, seconds) * np.stack([np.cos(angle), np.sin(angle)])
    return gains


def _envelope(actor: Actor, seen: Track, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    fade: NDArray[np.float64] = np.clip(seconds / FADE_SECONDS, 0, 1)
    match actor.motion:
        case "bounce":
            since = seconds[None] - np.array(seen.impacts)[:, None]
            plucks = np.where(since >= 0, np.exp(-np.maximum(since, 0) / PLUCK_SECONDS), 0.0)
            loudest: NDArray[np.float64] = plucks.max(0, initial=0.0)
            return 1.4 * loudest
        case "appear":
            begin = float(np.argmax(seen.visible)) / FPS
            fade = np.clip((seconds - begin) / FADE_SECONDS, 0, 1)
        case "grow" | "shrink":
            share = seconds / seconds[-1]
            fade = fade * (0.15 + 0.85 * (share if actor.motion == "grow" else 1 - share))
    return fade

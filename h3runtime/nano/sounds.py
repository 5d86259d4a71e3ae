"""Scenes as stereo sound: a tone per actor, its pitch from the shape, its rhythm from the motion, its pan from x.

    bounce: a pluck at every impact        appear: the tone starts with the actor
    grow, shrink: louder, softer           all else: a steady tone

All tones are sines of absolute time, so a steady tone looks the same in every audio latent. Many clips at once, on any
device; float32 at 32 kHz.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def sound(
    scenes: Sequence[Scene], frames: int, device: torch.device | str = "cpu", *, aspect: float = 1.0
) -> torch.Tensor:
    """Samples float32 [B, 2, 800 A] of the scenes."""
    count = audio_latents(frames) * SAMPLES_PER_LATENT
    out = torch.zeros(len(scenes), 2, count, device=device)
    time = torch.arange(count, device=device, dtype=torch.float64) / SAMPLE_RATE
    tones = {(p, name): _tone(time, p, name) for p in PITCHES.values() for name in TIMBRES}
    for index in range(max(len(scene.actors) for scene in scenes)):
        at = [i for i, scene in enumerate(scenes) if scene.sound and len(scene.actors) > index]
        if not at:
            continue
        actors = [scenes[i].actors[index] for i in at]
        gains = np.stack([_gains(a, track(a, frames, aspect), count) for a in actors])
        levels = torch.tensor([LOUDNESS / len(scenes[i].actors) for i in at], device=device).view(-1, 1, 1)
        smooth = torch.nn.functional.interpolate(
            torch.tensor(gains, dtype=torch.float32, device=device), size=count, mode="linear", align_corners=True
        )
        tone = torch.stack([tones[PITCHES[a.shape], scenes[i].timbre] for i, a in zip(at, actors, strict=True)])
        out[at] += smooth * levels * tone.unsqueeze(1)
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

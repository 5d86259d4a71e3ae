"""A clip as the engine sampled it, and what it is compared by. Made by `making`, read by `trials`."""

from __future__ import annotations

from dataclasses import dataclass

from h3runtime.core import Latents


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """seconds: of sampling alone."""

    latents: Latents
    seconds: float
    forwards: int
    skipped_steps: int


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a clip is from the exact one: mean SSIM of its frames, all of them, and dB of its sound."""

    ssim: float
    audio_db: float

"""What a request may write, by its sizes alone, and how much is free; a look at the disk at most once a second.

    clip      0.25 bytes a pixel and frame: four times what H.264 takes of ordinary pictures at its default quality;
              1.5 where the quality asked for is next to lossless, which is what the pixels themselves are
    tail      1.75 bytes a pixel and frame of the last 56 of the first clip: FFV1 (56 frames of 1344x768: 100 MB)
    sound     8 bytes a sample and channel pair: a WAV while it is muxed
    latents   4 bytes a value, once for `save_latents`, and once a step for diagnostics of latents

Fed by `admission` and `/ready`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from h3runtime.core import FPS, SAMPLE_RATE, GenerateSpec
from h3runtime.errors import DiskFull
from h3runtime.packing import geometry

CLIP_BYTES = 0.25
NEAR_LOSSLESS_BYTES = 1.5
NEAR_LOSSLESS_CRF = 10
TAIL_BYTES = 1.75
SOUND_BYTES = 8
VIDEO_CHANNELS, AUDIO_CHANNELS = 24, 64
"""Channels of a latent; a sound's are 32 of two sides (core.Latents)."""
LOOK_SECONDS = 1.0


def needed_bytes(spec: GenerateSpec) -> int:
    """Of everything that the job writes, all clips counted."""
    pixels = spec.width * spec.height
    fine = spec.encode.crf is not None and spec.encode.crf < NEAR_LOSSLESS_CRF
    clip = pixels * spec.frames * (NEAR_LOSSLESS_BYTES if fine else CLIP_BYTES)
    sound = SOUND_BYTES * SAMPLE_RATE * spec.frames / FPS
    tail = TAIL_BYTES * pixels * spec.tail.frames if spec.tail else 0.0
    kept = int(spec.save_latents) + (spec.sampling.steps if spec.diagnostic_latents else 0)
    return round(spec.n * (clip + sound + kept * _latent_bytes(spec)) + tail)


def require(needed: int, free: int, floor: int) -> None:
    """`DiskFull` if there is less than `floor`, or would be once `needed` bytes are written."""
    if free < floor:
        raise DiskFull("free disk space is below the floor that this server keeps")
    if needed > free - floor:
        raise DiskFull(f"the job may write {needed} bytes, and {free - floor} are free above the server's floor")


class FreeBytes:
    """The free bytes, looked at most once a second: probes come in hundreds."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._seen = 0
        self._at: float | None = None

    def __call__(self) -> int:
        now = time.monotonic()
        if self._at is None or now - self._at > LOOK_SECONDS:
            self._seen, self._at = self._look(), now
        return self._seen


def _latent_bytes(spec: GenerateSpec) -> int:
    side = geometry.latent_side(spec.height) * geometry.latent_side(spec.width)
    video = VIDEO_CHANNELS * geometry.latent_frames(spec.frames) * side
    return 4 * (video + AUDIO_CHANNELS * geometry.audio_latents(spec.frames))

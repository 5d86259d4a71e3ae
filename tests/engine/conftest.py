"""The engine of the end-to-end tests, and small media: a picture, a clip with sound, a voice, masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from h3runtime.core import FPS, ClipInput, MediaFile, SoundInput
from h3runtime.engine.conditions.media_cache import MediaCache
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.run import FIRST_GUESS, Run
from tests.clips import SAMPLE_RATE, moving, tones, write_clip
from tests.e2e.conftest import engine, make_spec

__all__ = ["Media", "engine", "make_spec", "media"]


class Media:
    """Files of a test, made once each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def picture(self, field: str, seed: int = 0, width: int = 80, height: int = 48) -> MediaFile:
        path = self.folder / f"picture-{seed}-{width}x{height}.png"
        Image.fromarray(moving(1, height, width, seed)[0]).save(path)
        return MediaFile(path, field)

    def clip(self, field: str, frames: int, seed: int = 0, width: int = 32, height: int = 32) -> ClipInput:
        """Its sound lasts as long as its pictures."""
        path = self.folder / f"clip-{seed}-{frames}-{width}x{height}.mkv"
        if not path.exists():
            write_clip(path, moving(frames, height, width, seed), tones(SAMPLE_RATE * frames // FPS))
        return ClipInput(MediaFile(path, field), 0, frames)

    def voice(self, field: str, seconds: float = 2.0) -> SoundInput:
        path = self.folder / f"voice-{seconds}.wav"
        if not path.exists():
            write_clip(path, sound=tones(round(SAMPLE_RATE * seconds), 1))
        return SoundInput(MediaFile(path, field))

    def mask(self, pixels: np.ndarray, name: str = "mask") -> MediaFile:
        """A picture of uint8 [H, W]."""
        path = self.folder / f"{name}.png"
        Image.fromarray(pixels).save(path)
        return MediaFile(path, "masks.video")

    def sound_of(self, clip: ClipInput) -> SoundInput:
        return SoundInput(clip.file)


def idle_run() -> Run:
    return Run(lambda _: None, lambda: False, FIRST_GUESS)


@pytest.fixture
def encoder(engine) -> MediaEncoder:
    """It remembers nothing."""
    return MediaEncoder(engine.models.vaes, engine.device, MediaCache(0), idle_run())


@pytest.fixture
def media(tmp_path: Path) -> Media:
    return Media(tmp_path)

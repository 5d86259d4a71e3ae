"""Clips and sounds of given frames and samples in any container, by PyAV alone: what `compare` is tested with."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 32_000
LOSSLESS = "ffv1"
"""With `bgr0` every RGB value comes back as it went."""


def moving(frames: int, height: int = 32, width: int = 48, seed: int = 0) -> NDArray[np.uint8]:
    """uint8 [F, H, W, 3]: smooth blobs that change from frame to frame, a little differently for each seed."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    phases = rng.uniform(0, 6, 3)
    t = np.arange(frames)[:, None, None, None]
    waves = np.sin(x[None, :, :, None] / 7 + phases + t / 5) + np.cos(y[None, :, :, None] / 5 - t / 3)
    return np.clip(128 + 55 * waves, 0, 255).astype(np.uint8)


def noisy(frames: NDArray[np.uint8], levels: float, seed: int = 1) -> NDArray[np.uint8]:
    errors = np.random.default_rng(seed).normal(0, levels, frames.shape)
    return np.clip(np.round(frames + errors), 0, 255).astype(np.uint8)


def tones(samples: int, channels: int = 2) -> NDArray[np.float32]:
    t = np.arange(samples) / SAMPLE_RATE
    return np.stack([0.3 * np.sin(2 * np.pi * f * t) for f in (440, 1000)[:channels]]).astype(np.float32)


def write_clip(
    path: Path,
    frames: NDArray[np.uint8] | None = None,
    sound: NDArray[np.float32] | None = None,
    *,
    codec: str = LOSSLESS,
    pixel_format: str = "bgr0",
    sound_codec: str = "pcm_f32le",
    fps: int | Fraction = 24,
    sample_rate: int = SAMPLE_RATE,
) -> Path:
    """The container is that of the suffix."""
    with av.open(str(path), "w") as container:
        if frames is not None:
            video = container.add_stream(codec, rate=fps)
            video.width, video.height, video.pix_fmt = frames.shape[2], frames.shape[1], pixel_format
        if sound is not None:
            layout = "mono" if len(sound) == 1 else "stereo"
            audio = container.add_stream(sound_codec, rate=sample_rate, layout=layout)
        if frames is not None:
            for frame in frames:
                container.mux(video.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(video.encode(None))
        if sound is not None:
            block = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format="fltp", layout=layout)
            block.sample_rate, block.pts = sample_rate, 0
            container.mux(audio.encode(block))
            container.mux(audio.encode(None))
    return path

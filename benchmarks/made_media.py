"""Pictures, clips and sounds for contracts whose requests refer to media: drawn by arithmetic, the same everywhere.

Does: write a file of the wished kind, size and length. What is in it matters little to speed, but it moves, has edges
at every scale and is never constant, so that decoders and encoders do their usual work. Fed and read by `workload`.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image

from h3runtime.core import FPS, SAMPLE_RATE


def write_picture(path: Path, width: int, height: int, shade: int) -> Path:
    """A PNG."""
    Image.fromarray(_picture(width, height, shade, 0.0)).save(path)
    return path


def write_sound(path: Path, seconds: float) -> Path:
    """A mono WAV at 48 kHz, as a voice is usually recorded."""
    rate = 48_000
    soundfile.write(path, _tones(seconds, rate), rate, subtype="PCM_16")
    return path


def write_clip(path: Path, width: int, height: int, seconds: float, *, sound: bool) -> Path:
    """H.264 at 24 frames a second in MP4, with a mono AAC track where `sound` says so."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=FPS)
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        audio = container.add_stream("aac", rate=SAMPLE_RATE) if sound else None
        for index in range(round(seconds * FPS)):
            frame = av.VideoFrame.from_ndarray(_picture(width, height, 0, index / FPS), format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode())
        if audio is not None:
            whole = av.AudioFrame.from_ndarray(_tones(seconds, SAMPLE_RATE)[None], format="fltp", layout="mono")
            whole.rate, whole.time_base, whole.pts = SAMPLE_RATE, Fraction(1, SAMPLE_RATE), 0
            container.mux(audio.encode(whole))
            container.mux(audio.encode())
    return path


def _picture(width: int, height: int, shade: int, time: float) -> NDArray[np.uint8]:
    """uint8 [H, W, 3]: rings that drift over a gradient."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    rings = np.hypot(x - width * (0.5 + 0.3 * np.sin(time)), y - height / 2)
    layers = [np.sin(rings / (3 + 4 * layer) + 6 * time) * 60 + 128 + shade for layer in range(3)]
    lit = np.stack(layers, axis=-1) + (x * 60 / width)[..., None]
    pixels: NDArray[np.uint8] = np.clip(lit, 0, 255).astype(np.uint8)
    return pixels


def _tones(seconds: float, rate: int) -> NDArray[np.float32]:
    """float32 [n]: a voice's range, swelling three times a second."""
    time = np.arange(round(seconds * rate)) / rate
    voiced = sum(np.sin(2 * np.pi * 140 * overtone * time) / overtone for overtone in range(1, 9))
    return (0.1 * voiced * (1 + np.sin(2 * np.pi * 3 * time))).astype(np.float32)

"""Small clips and sounds of many kinds, made by the tests: PyAV's own encoders, pictures that tell which one they are.

Picture i of a clip is grey of level 8 i (at most 31 pictures), its upper left corner white: so a test can read off a
decoded frame which picture it was, and how it lies.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

LEVEL = 8
"""Grey levels between two pictures: lossy codecs stay within half of it."""
CORNER = 16


def picture(index: int, width: int, height: int) -> NDArray[np.uint8]:
    pixels = np.full((height, width, 3), LEVEL * index, np.uint8)
    pixels[:CORNER, :CORNER] = 255
    return pixels


def which(frame: NDArray[np.uint8]) -> int:
    """The index of the picture that a frame shows, by its middle and the parts around it."""
    height, width = frame.shape[:2]
    return round(float(frame[height * 3 // 8 : height * 5 // 8, width * 3 // 8 : width * 5 // 8].mean()) / LEVEL)


def tone(seconds: float, rate: int, hertz: float = 440.0) -> NDArray[np.float32]:
    """float32 [n]."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def beeps(times: Iterable[float], seconds: float, rate: int) -> NDArray[np.float32]:
    """float32 [n]: silence, and 50 ms of a tone from each of the times on."""
    samples = np.zeros(round(seconds * rate), np.float32)
    for time in times:
        begin = round(time * rate)
        samples[begin : begin + rate // 20] = tone(0.05, rate, 1000.0)[: len(samples) - begin]
    return samples


def onsets(samples: NDArray[np.float32], rate: int = 32_000) -> list[float]:
    """Seconds at which something begins after at least 0.1 s of silence."""
    loud = np.flatnonzero(np.abs(samples) > 0.05)
    firsts = loud[np.diff(loud, prepend=-rate) > rate // 10]
    return [float(first) / rate for first in firsts]


def make_clip(
    path: Path,
    codec: str = "libx264",
    *,
    times: Sequence[int | Fraction],
    base: Fraction = Fraction(1, 24),
    width: int = 64,
    height: int = 48,
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
    turned: int | None = None,
    aspect: Fraction | None = None,
    pictures: Iterable[NDArray[np.uint8]] | None = None,
    sound: NDArray[np.float32] | None = None,
    sound_codec: str = "aac",
    sound_rate: int = 48_000,
    sound_start: float = 0.0,
) -> Path:
    """A clip whose picture i is shown at `times[i]` units of `base`; sound: float32 [n]. The suffix names the kind."""
    quiet = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=round(1 / base), options=quiet | (options or {}))
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.time_base = base
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if turned is not None:
            stream.set_display_rotation(turned)
        heard = container.add_stream(sound_codec, rate=sound_rate, layout="mono") if sound is not None else None
        shown = pictures if pictures is not None else (picture(i, width, height) for i in range(len(times)))
        for pixels, time in zip(shown, times, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = int(time), base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if heard is not None and sound is not None:
            _put_sound(container, heard, sound[None], sound_rate, round(sound_start * sound_rate))
    return path


def make_sound(path: Path, codec: str, samples: NDArray[np.float32], rate: int, layout: str = "mono") -> Path:
    """float32 [C, n] in the container that the suffix names."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        _put_sound(container, stream, samples, rate, 0, layout)
    return path


def _put_sound(container, stream, samples, rate: int, begin: int, layout: str = "mono") -> None:
    block = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
    block.sample_rate, block.pts, block.time_base = rate, begin, Fraction(1, rate)
    resampler = av.AudioResampler(format=stream.format.name, layout=layout, rate=stream.rate)
    for piece in [*resampler.resample(block), *resampler.resample(None)]:
        container.mux(stream.encode(piece))
    container.mux(stream.encode())


def damage(path: Path) -> Path:
    """The same MP4 with the bytes of its last packets overwritten, its index and headers whole."""
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as opened:
        places = [(p.pos, p.size) for p in opened.demux(opened.streams.best("video") or opened.streams[0]) if p.size]
    noise = np.random.default_rng(0)
    for position, size in places[len(places) // 3 : -5]:
        data[position : position + size] = noise.integers(0, 256, size, np.uint8).tobytes()
    broken = path.with_name(f"broken-{path.name}")
    broken.write_bytes(data)
    return broken

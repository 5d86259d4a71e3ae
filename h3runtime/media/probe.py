"""What a finished clip really holds, read back with PyAV: counted, not believed.

`mux` checks every file it made with `count_packets` before the file gets its name; tests, `decode` and the command line
use the rest. imageio-ffmpeg ships no ffprobe, so nothing here starts a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import av
import av.container
import numpy as np
from av.video.reformatter import ColorRange, Colorspace
from numpy.typing import NDArray

from h3runtime.errors import BadMedia, bad_media

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SoundFacts:
    """samples: decoded samples a channel, the encoder's padding included."""

    codec: str
    profile: str | None
    rate: int
    channels: int
    layout: str
    samples: int


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """frames: decoded pictures. primaries, transfer, matrix, range: H.273 numbers (2 unspecified; range 1 limited)."""

    container: str
    codec: str
    profile: str | None
    pixel_format: str
    width: int
    height: int
    frames: int
    rate: Fraction
    primaries: int
    transfer: int
    matrix: int
    range: int
    sound: SoundFacts | None


def probe_clip(path: Path, field: str = "clip") -> ClipFacts:
    """Facts of a clip; decodes all of it. `BadMedia` naming `field` if it has no video or can't be decoded."""
    with opened(path, field) as container:
        if not container.streams.video:
            raise _bad(field, "it has no video")
        stream = container.streams.video[0]
        sound = _sound_facts(path, field) if container.streams.audio else None
        frames = sum(1 for _ in container.decode(stream))
        context = stream.codec_context
        return ClipFacts(
            container=container.format.name,
            codec=context.name,
            profile=context.profile,
            pixel_format=str(context.pix_fmt),
            width=context.width,
            height=context.height,
            frames=frames,
            rate=Fraction(stream.average_rate or 0),
            primaries=int(context.color_primaries),
            transfer=int(context.color_trc),
            matrix=int(context.colorspace),
            range=int(context.color_range),
            sound=sound,
        )


def count_packets(path: Path, field: str = "clip") -> tuple[int, int]:
    """Video and audio packets in the file, nothing decoded: one packet is one picture in every codec written here."""
    with opened(path, field) as container:
        video = audio = 0
        for packet in container.demux():
            if packet.size:
                video += packet.stream.type == "video"
                audio += packet.stream.type == "audio"
        return video, audio


def read_frames(path: Path, field: str = "clip") -> NDArray[np.uint8]:
    """uint8 [F, H, W, 3]: all pictures as RGB, converted with the matrix that the stream names."""
    return _stacked(path, field, to_rgb)


def read_planes(path: Path, field: str = "clip") -> NDArray[np.uint8]:
    """uint8 [F, H*3/2, W] of a yuv420p clip: Y plane, then U, then V, as decoded."""
    return _stacked(path, field, _planes)


def read_sound(path: Path, field: str = "clip") -> tuple[NDArray[np.float32], int]:
    """float32 [C, n] and the rate. The encoder's lead-in is skipped as the file says; padding at the end may stay."""
    with opened(path, field) as container:
        if not container.streams.audio:
            raise _bad(field, "it has no sound")
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp", layout=stream.layout, rate=stream.rate)
        pieces = [out.to_ndarray() for frame in container.decode(stream) for out in resampler.resample(frame)]
        pieces += [out.to_ndarray() for out in resampler.resample(None)]
        return np.concatenate(pieces, axis=1).astype(np.float32, copy=False), stream.rate


def to_rgb(frame: av.VideoFrame) -> NDArray[np.uint8]:
    """uint8 [H, W, 3], by the matrix and range that the frame names; BT.601 and limited if it names none."""
    matrix = Colorspace.ITU709 if frame.colorspace == Colorspace.ITU709 else Colorspace.ITU601
    is_full = frame.color_range == ColorRange.JPEG or frame.format.is_rgb or frame.format.name.startswith("yuvj")
    converted = frame.reformat(
        format="rgb24",
        src_colorspace=matrix,
        src_color_range=ColorRange.JPEG if is_full else ColorRange.MPEG,
        dst_color_range=ColorRange.JPEG,
    )
    return converted.to_ndarray().astype(np.uint8, copy=False)


def _planes(frame: av.VideoFrame) -> NDArray[np.uint8]:
    return frame.to_ndarray(format="yuv420p").astype(np.uint8, copy=False)


def _stacked(path: Path, field: str, convert: Callable[[av.VideoFrame], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    with opened(path, field) as container:
        if not container.streams.video:
            raise _bad(field, "it has no video")
        return np.stack([convert(frame) for frame in container.decode(container.streams.video[0])])


def _sound_facts(path: Path, field: str) -> SoundFacts:
    with opened(path, field) as container:
        stream = container.streams.audio[0]
        samples = sum(frame.samples for frame in container.decode(stream))
        context = stream.codec_context
        return SoundFacts(context.name, context.profile, stream.rate, context.channels, context.layout.name, samples)


@contextmanager
def opened(path: Path, field: str) -> Iterator[av.container.InputContainer]:
    """The file and nothing else: no other protocol can be reached from inside it."""
    try:
        with av.open(str(path.absolute()), options={"protocol_whitelist": "file"}) as container:
            yield container
    except (av.FFmpegError, OSError, ValueError) as error:
        raise _bad(field, "it can't be decoded") from error


def _bad(field: str, why: str) -> BadMedia:
    return bad_media(field, why, "a whole clip")

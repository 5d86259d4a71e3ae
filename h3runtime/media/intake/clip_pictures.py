"""Pictures of a clip as they are decoded, one at a time, each with its time: upright RGB when asked for.

Any container and codec that PyAV's FFmpeg reads, and animated pictures. `clip_frames` turns them into frames on the
24 fps clock, `full_measure` counts them. Memory doesn't grow with the clip: the decoder's few pictures and one more.

A picture isn't converted until `upright` is called: of a 60 fps clip most never are. Interlaced pictures stay as they
are decoded; an alpha channel is left out, except that of animated pictures, which lie on black.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from h3runtime.media.intake.clip_clock import Stamp
from h3runtime.media.intake.containers import bad_medium, opened_medium, picture_stream
from h3runtime.media.intake.decoding import decoded, decoded_strictly
from h3runtime.media.intake.first_picture import first_picture_time, shown_ticks
from h3runtime.media.intake.moving_picture import is_moving, moving_pictures
from h3runtime.media.intake.turning import Turning, square_width, turning_of
from h3runtime.media.pictures import stretch
from h3runtime.media.probe import to_rgb

MAX_PIXELS = 8192 * 4320
"""The largest picture of a clip that is decoded: 8K, as cinemas have it."""


@dataclass(frozen=True, slots=True)
class ClipPicture:
    """width, height, turning: of the upright picture in square pixels. upright: converts it, uint8 [height, width, 3];
    the decoded frame stays in memory as long as this does."""

    stamp: Stamp
    width: int
    height: int
    turning: Turning
    upright: Callable[[], NDArray[np.uint8]]


def clip_pictures(
    path: Path, field: str, *, max_pixels: int = MAX_PIXELS, is_strict: bool = False
) -> Generator[ClipPicture, None, None]:
    """All pictures from the first that is shown. `BadMedia` naming `field` for what is no clip, can't be decoded, or
    changes its size on the way.

    is_strict: also for damage that a decoder hides, as far as it says so; for a process of its own, since the decoder's
    words are heard by the whole process.
    """
    if is_moving(path, field):
        yield from _animated(path, field, max_pixels)
        return
    size: tuple[int, int] | None = None
    for picture in _filmed(path, field, max_pixels, is_strict):
        if size is not None and (picture.width, picture.height) != size:
            raise bad_medium(field, "its pictures change size on the way")
        size = picture.width, picture.height
        yield picture


def _animated(path: Path, field: str, max_pixels: int) -> Generator[ClipPicture, None, None]:
    time = Fraction(0)
    for picture in moving_pictures(path, field, max_pixels):
        height, width = picture.pixels.shape[:2]
        yield ClipPicture(Stamp(time, picture.duration), width, height, Turning(), picture.get)
        time += picture.duration


def _filmed(path: Path, field: str, max_pixels: int, is_strict: bool) -> Generator[ClipPicture, None, None]:
    first = first_picture_time(path, field)
    with opened_medium(path, field) as container:
        stream = picture_stream(container)
        if stream is None:
            raise bad_medium(field, "it has no pictures")
        _refuse_large(stream.width, stream.height, field, max_pixels)
        stream.codec_context.options = {"max_pixels": str(max_pixels)}
        rotation, turning = None, Turning()
        for frame in decoded_strictly(container, stream, field) if is_strict else decoded(container, stream):
            _refuse_large(frame.width, frame.height, field, max_pixels)
            # PyAV ties a frame whose side data is read to itself: it would stay until the garbage collector comes.
            if frame.rotation != rotation:
                rotation, turning = frame.rotation, turning_of(frame)
            stamp = _stamp(frame, container.format.name)
            if first is None or stamp.time is None or stamp.time >= first:
                yield _picture(frame, stamp, turning, stream.sample_aspect_ratio, field, max_pixels)


def _stamp(frame: av.VideoFrame, container: str) -> Stamp:
    ticks = shown_ticks(frame.pts, frame.dts, container)
    if frame.time_base is None:
        return Stamp(None)
    time = None if ticks is None else ticks * frame.time_base
    return Stamp(time, (frame.duration or 0) * frame.time_base or None)


def _picture(
    frame: av.VideoFrame, stamp: Stamp, turning: Turning, aspect: Fraction | None, field: str, max_pixels: int
) -> ClipPicture:
    stored_width = square_width(frame.width, aspect)
    _refuse_large(stored_width, frame.height, field, max_pixels)
    size = (frame.height, stored_width) if turning.is_sideways else (stored_width, frame.height)
    return ClipPicture(stamp, *size, turning, lambda: turning.apply(_squared(to_rgb(frame), stored_width)))


def _squared(picture: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Pixels made square, uint8 [H, W, 3] -> [H, width, 3]; untouched where they are."""
    return picture if picture.shape[1] == width else stretch(picture, width, picture.shape[0])


def _refuse_large(width: int, height: int, field: str, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise bad_medium(field, f"its pictures have more than {max_pixels} pixels")

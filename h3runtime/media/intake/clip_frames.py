"""Pictures of a clip on the 24 fps clock, upright, fitted to a canvas or as large as they are, one at a time.

The engine reads guides, references, sources and masks with it, for the text encoder and for the video encoder.
`clip_pictures` decodes, `clip_clock` says which picture is in which slot, `pictures` fits. Decoding starts where the
file does and stops with the last slot that is asked for; pictures that no slot shows aren't even converted.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import ClipInput, Fit
from h3runtime.media import pictures
from h3runtime.media.intake.clip_clock import ClipClock
from h3runtime.media.intake.clip_pictures import ClipPicture, clip_pictures
from h3runtime.media.intake.containers import bad_medium


def clip_frames(clip: ClipInput, width: int, height: int, fit: Fit) -> Generator[NDArray[np.uint8], None, None]:
    """uint8 [height, width, 3], `clip.frames` times, each an array of its own.

    `BadMedia` naming the field if the file can't be decoded so far, or ends before.
    """
    for picture, times in _shown(clip):
        yield from _repeated(_fitted(picture, width, height, fit), times)


def upright_frames(clip: ClipInput) -> Generator[NDArray[np.uint8], None, None]:
    """As `clip_frames`, at the clip's own upright size."""
    for picture, times in _shown(clip):
        yield from _repeated(picture.upright(), times)


def _shown(clip: ClipInput) -> Generator[tuple[ClipPicture, int], None, None]:
    """Each picture that is seen, and in how many of the wanted frames; `clip.frames` in all."""
    wanted = range(clip.first, clip.first + clip.frames)
    given = 0
    for picture, slots in _timed(clip):
        times = len(_overlap(slots, wanted))
        if times:
            yield picture, times
            given += times
        if given == clip.frames:
            return
    raise bad_medium(clip.file.field, f"it ends {clip.frames - given} frames too early for {clip.frames} at 24 fps")


def _timed(clip: ClipInput) -> Generator[tuple[ClipPicture, range], None, None]:
    """Each picture once it is known how long it holds, which the next one tells."""
    clock = ClipClock()
    shown: ClipPicture | None = None
    for picture in clip_pictures(clip.file.path, clip.file.field):
        slots = clock.show(picture.stamp)
        if shown is not None:
            yield shown, slots
        shown = picture
    if shown is not None:
        yield shown, clock.end()


def _repeated(frame: NDArray[np.uint8], times: int) -> Generator[NDArray[np.uint8], None, None]:
    yield from (frame.copy() for _ in range(times - 1))
    yield frame


def _overlap(slots: range, wanted: range) -> range:
    return range(max(slots.start, wanted.start), min(slots.stop, wanted.stop))


def _fitted(picture: ClipPicture, width: int, height: int, fit: Fit) -> NDArray[np.uint8]:
    return (pictures.cover if fit == "cover" else pictures.stretch)(picture.upright(), width, height)

"""Animated pictures as clips: WebP, GIF, PNG and AVIF, one picture at a time, each with how long it is shown.

Pillow decodes them, not FFmpeg: so alpha lies on black as in a still, and animated WebP is read at all. `clip_pictures`
and `packet_measure` read it. Pictures must be decoded to learn how long they are shown, so measuring does that too.

A picture that is to be shown for 10 ms or less is shown for 100 ms, as every browser does.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from h3runtime.media.intake.containers import bad_medium
from h3runtime.media.pictures import flatten, identify, open_picture

MOVING = frozenset({"WEBP", "GIF", "PNG", "AVIF"})
"""Pillow's names of kinds whose several pictures are an animation, as those of TIFF and MPO are not."""
TOO_SHORT, INSTEAD = Fraction(1, 100), Fraction(1, 10)
"""Seconds."""


@dataclass(frozen=True, slots=True)
class MovingPicture:
    """pixels: uint8 [H, W, 3] on black. duration: seconds."""

    pixels: NDArray[np.uint8]
    duration: Fraction

    def get(self) -> NDArray[np.uint8]:
        return self.pixels


def picture_kind(path: Path) -> Literal["still", "moving"] | None:
    """By its header; None for whatever is no picture that can be read."""
    try:
        with path.open("rb") as file, identify(file) as image:
            return "moving" if image.format in MOVING and getattr(image, "n_frames", 1) > 1 else "still"
    except Exception:
        # Pillow raises nearly anything on a hostile file; whoever reads clips says what is wrong with it.
        return None


def is_moving(path: Path, field: str) -> bool:
    """Whether this module reads the file, asked of what should be a clip or a sound. `BadMedia` for a still picture."""
    kind = picture_kind(path)
    if kind == "still":
        raise bad_medium(field, "it is a still picture, not a clip or a sound")
    return kind == "moving"


def moving_pictures(path: Path, field: str, max_pixels: int) -> Generator[MovingPicture, None, None]:
    """All pictures in order. `BadMedia` naming `field` where one can't be decoded, or is larger than `max_pixels`."""
    try:
        with path.open("rb") as file, open_picture(file, field, max_pixels) as image:
            pictures = ImageSequence.Iterator(image)
            for index, picture in enumerate(pictures):
                # The first picture of an animated PNG may be a stand-in for programs that don't know the kind.
                if index or not getattr(image, "default_image", False):
                    yield _shown(picture)
    except (OSError, SyntaxError, EOFError, ValueError, ArithmeticError) as error:
        raise bad_medium(field, "it is damaged or cut short") from error


def _shown(picture: Image.Image) -> MovingPicture:
    picture.load()
    pixels = np.array(flatten(picture), dtype=np.uint8)
    duration = Fraction(picture.info.get("duration") or 0) / 1000
    return MovingPicture(pixels, duration if duration > TOO_SHORT else INSTEAD)

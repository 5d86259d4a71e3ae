"""How the pictures of a clip get upright: the display matrix, and pixels that aren't square.

`clip_pictures` applies it to every picture, `packet_measure` to the size. A phone stores its pictures as the sensor
reads them and adds a matrix; formats of television store few wide pixels and add their aspect.

The matrix (ISO 14496-12, tkhd; nine 32-bit integers a b u, c d v, x y w) takes pixel (x, y), y downwards, to
(a x + c y, b x + d y). Only turns by multiples of 90 degrees and mirrorings count; any other is taken as the nearest.
Pixels that aren't square make the stored width wider or narrower, the height stays.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import atan2, degrees
from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideData, Type
from numpy.typing import NDArray

MATRIX_BYTES = 36


@dataclass(frozen=True, slots=True)
class Turning:
    """The four numbers of a display matrix that turn and mirror."""

    a: int = 1
    b: int = 0
    c: int = 0
    d: int = 1

    @property
    def is_sideways(self) -> bool:
        """Whether width and height change places."""
        return abs(self.b) + abs(self.c) > abs(self.a) + abs(self.d)

    @property
    def degrees(self) -> int:
        """Clockwise, 0, 90, 180 or 270; a mirroring isn't told."""
        return round(degrees(atan2(self.b, self.a)) / 90) % 4 * 90

    def apply(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8 [H, W, 3] -> upright, [W, H, 3] if it lies on its side."""
        across, down = (self.c, self.b) if self.is_sideways else (self.a, self.d)
        turned = picture.transpose(1, 0, 2) if self.is_sideways else picture
        return np.ascontiguousarray(turned[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])


def turning_of(frame: av.VideoFrame) -> Turning:
    """What the file says about a decoded picture; upright if it says nothing."""
    # Iterating gives pieces before PyAV 19 and their types since; asking for a type is the same in both. Its stubs say
    # that types are texts.
    pieces = cast("Mapping[Type, SideData]", frame.side_data)
    raw = bytes(pieces.get(Type.DISPLAYMATRIX) or b"")
    if len(raw) != MATRIX_BYTES:
        return Turning()
    a, b, _, c, d = struct.unpack("=5i", raw[:20])
    return Turning(a, b, c, d) if a or b or c or d else Turning()


def square_width(width: int, aspect: Fraction | None) -> int:
    """Stored width in square pixels; `aspect` is a pixel's width over its height, None or 0 if unknown."""
    return max(1, round(width * aspect)) if aspect else width

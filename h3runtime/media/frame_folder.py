"""A folder of pictures as the frames of a clip: what `decode --frames` wrote, or any other program.

Does: put the pictures in order and read them one at a time. Does not: write them (`frames`) or decode a format of its
own (`pictures`). Read by `compare`.

Order is by name with numbers read as numbers, so `frame_9.png` comes before `frame_10.png`. Hidden files and files that
are no pictures by their suffix are passed over; the number in a name is not the frame's.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h3runtime.errors import BadMedia, bad_media
from h3runtime.media.pictures import read_picture

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"})


def frame_paths(folder: Path, field: str) -> tuple[Path, ...]:
    """The pictures in order. `BadMedia` naming `field` if there are none."""
    found = [p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")]
    if not found:
        raise _bad(field, "there are no pictures in it")
    return tuple(sorted(found, key=_order))


def each_picture(paths: Sequence[Path], field: str) -> Generator[NDArray[np.uint8], None, None]:
    """uint8 [H, W, 3] each. `BadMedia` naming `field` and the file if one can't be read or is of another size than the
    first."""
    size: tuple[int, ...] | None = None
    for path in paths:
        frame = read_picture(path, f"{field}, {path.name}").pixels
        if size is not None and frame.shape != size:
            raise _bad(field, f"{path.name} is {frame.shape[1]}x{frame.shape[0]}, not {size[1]}x{size[0]}")
        size = frame.shape
        yield frame


def _order(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Runs of digits by value, all else by spelling; the name itself settles `1.png` against `01.png`."""
    parts = re.findall(r"[0-9]+|[^0-9]+", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], path.name


def _bad(field: str, why: str) -> BadMedia:
    return bad_media(field, why, "a folder of pictures of one size")

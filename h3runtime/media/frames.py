"""Frames to a folder of PNG files (`decode --frames DIR`), as they come.

The folder appears whole or not at all: files are written into a hidden neighbour, which is renamed at the end.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from h3runtime.errors import Offence, OutputExists
from h3runtime.media.delivery import disk_error

DIGITS = 5
COMPRESSION = 3
"""zlib level: within a few per cent of the size of the default 6 at half its time."""


def frame_name(index: int) -> str:
    """`frame_00000.png`, counted from 0 like every frame number of this project."""
    return f"frame_{index:0{DIGITS}d}.png"


def write_frames(chunks: Iterable[NDArray[np.uint8]], folder: Path) -> int:
    """uint8 [n, H, W, 3] chunks to `folder`, which must not exist or be empty; how many frames there were.

    `OutputExists`, `JobDiskFull`; whatever `chunks` raises passes through. Nothing is left behind then.
    """
    require_frames_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    unfinished.mkdir()
    try:
        count = _write(chunks, unfinished)
        unfinished.rename(folder)
        return count
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def require_frames_folder(folder: Path) -> None:
    """`OutputExists` unless it doesn't exist or is empty: before there are frames."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder.name} exists and is not an empty folder"
        raise OutputExists(message, [Offence("frames", message, "a new or an empty folder")])


def _write(chunks: Iterable[NDArray[np.uint8]], folder: Path) -> int:
    index = 0
    for chunk in chunks:
        for frame in chunk:
            try:
                Image.fromarray(frame).save(folder / frame_name(index), compress_level=COMPRESSION)
            except OSError as error:
                raise disk_error(error, "mux") from error
            index += 1
    return index

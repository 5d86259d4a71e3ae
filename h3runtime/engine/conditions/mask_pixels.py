"""A mask picture or clip -> what `denoiser.masks` reads of it: white generates, black keeps (dit-contract §8).

    RGB -> luminance (Pillow's L: ITU-R 601) -> canvas, Pillow's BILINEAR, which makes no values beyond its input's
        -> the four pixels around every latent's middle

A mask is brought to latent size with half-pixel centres: latent i reads pixels 16 i + 7 and 16 i + 8, half of each, and
no others. Those alone are kept, 1/64 of the canvas; of them, latent i reads 2 i and 2 i + 1, half of each, so the
result has the same bits. Fed by `media_encoder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from h3runtime.core import PIXELS_PER_LATENT, ClipInput, MediaFile
from h3runtime.engine.conditions.media_cache import Pixels
from h3runtime.media.intake.clip_frames import upright_frames
from h3runtime.media.pictures import read_picture


def picture_mask(file: MediaFile, width: int, height: int) -> Pixels:
    """uint8 [height/8, width/8], for all frames."""
    return near_middles(luminance(read_picture(file.path, file.field).pixels, width, height))


def clip_mask(clip: ClipInput, width: int, height: int) -> Iterator[Pixels]:
    """uint8 [height/8, width/8] of each of the clip's frames."""
    # As large as they are, so that they are resized once, by the filter of masks.
    with closing(upright_frames(clip)) as pictures:
        for picture in pictures:
            yield near_middles(luminance(picture, width, height))


def luminance(picture: Pixels, width: int, height: int) -> Pixels:
    """uint8 [H, W, 3] -> uint8 [height, width]."""
    grey = Image.fromarray(picture).convert("L").resize((width, height), Image.Resampling.BILINEAR)
    return np.array(grey, dtype=np.uint8)


def near_middles(mask: Pixels) -> Pixels:
    """uint8 [H, W] -> the pixels next to each latent's middle, uint8 [H/8, W/8]."""
    rows, columns = (_middles(side) for side in mask.shape)
    return mask[np.ix_(rows, columns)]


def _middles(side: int) -> NDArray[np.intp]:
    before = np.arange(PIXELS_PER_LATENT // 2 - 1, side, PIXELS_PER_LATENT)
    return np.stack([before, before + 1], axis=1).ravel()

"""Pictures in: a file or its bytes to upright 8-bit RGB pixels, and the two ways a picture is fitted to a canvas.

`api` measures what it is given before it accepts a request, `engine` reads it again when the job runs; conditioning and
the video encoder get the fitted pixels. Clips, sounds and pictures out are elsewhere.

What happens to a picture, in this order:

    size       refused above `MAX_PIXELS`, from the header, before a pixel is decoded
    frames     an animation (GIF, WebP, APNG) or a multi-picture file (MPO, TIFF) is its first frame
    turning    the EXIF orientation is applied, so width and height are those a person sees (the decoders of TIFF and
               HEIC do it themselves; the orientation then reads 1)
    16 bits    the high byte is kept, for grey as for colour
    alpha      composited on black; a palette's or grey's transparent entry counts as alpha
    colour     palette, grey and CMYK become RGB by Pillow's plain formulas; an embedded ICC profile is ignored, as
               ComfyUI does
    fitting    Pillow's LANCZOS on 8-bit RGB (conditioning contract §3.2)
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pillow_heif
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from h3runtime.errors import BadMedia, bad_media

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
"""Decoders that are offered a file. The rest of Pillow's stay closed: one of them starts a program."""
MAX_PIXELS = 80_000_000
"""Largest picture that is decoded. Below the size from which Pillow itself warns (89 478 485)."""
LEGAL = f"a whole PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF or HEIC picture of at most {MAX_PIXELS} pixels"

ORIENTATION_TAG = 0x0112
"""EXIF tag 274."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what turns the stored picture upright (EXIF 2.3, tag 274; 1 is upright)."""
PLAIN_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})
"""Pillow modes of 8 bits or fewer a channel that it converts to RGB itself."""
SIXTEEN_BIT_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """width, height: upright, in pixels. orientation: EXIF 1..8 as stored. mode, format: Pillow's names, as stored."""

    width: int
    height: int
    orientation: int
    mode: str
    format: str


@dataclass(frozen=True, slots=True)
class Picture:
    """pixels: uint8 [H, W, 3], upright RGB on black."""

    pixels: NDArray[np.uint8]
    facts: PictureFacts


def read_picture(source: bytes | Path, field: str, max_pixels: int = MAX_PIXELS) -> Picture:
    """Upright RGB pixels. `BadMedia` naming `field` for anything that isn't a whole picture within the limit."""
    rgb, facts = _decode(source, field, max_pixels)
    return Picture(np.array(_upright(rgb, facts.orientation), dtype=np.uint8), facts)


def measure_picture(source: bytes | Path, field: str, max_pixels: int = MAX_PIXELS) -> PictureFacts:
    """Upright size and kind of a picture that `read_picture` will take; same errors. Decodes, but turns nothing."""
    return _decode(source, field, max_pixels)[1]


def stretch(picture: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] -> uint8 [height, width, 3], aspect ignored. LANCZOS; the same pixels if the size is right."""
    resized = Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS)
    return np.array(resized, dtype=np.uint8)


def cover(picture: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] -> uint8 [height, width, 3]: the middle of the right aspect is cut out, then stretched."""
    old_height, old_width = picture.shape[:2]
    left, top = cover_margins(old_width, old_height, width, height)
    cut = picture[top : old_height - top, left : old_width - left]
    return stretch(np.ascontiguousarray(cut), width, height)


def cover_margins(old_width: int, old_height: int, width: int, height: int) -> tuple[int, int]:
    """Columns cut off left and right, rows cut off top and bottom (conditioning contract §3.2, half to even).

    One row or column at least is left, where ComfyUI's rule would leave none (a 2000x1 picture on a tall canvas).
    """
    old, new = old_width / old_height, width / height
    left = round((old_width - old_width * (new / old)) / 2) if old > new else 0
    top = round((old_height - old_height * (old / new)) / 2) if old < new else 0
    return min(left, (old_width - 1) // 2), min(top, (old_height - 1) // 2)


def _bad(field: str, why: str) -> BadMedia:
    return bad_media(field, why, LEGAL)


def _decode(source: bytes | Path, field: str, max_pixels: int) -> tuple[Image.Image, PictureFacts]:
    """RGB as stored (not turned yet). All of the file is decoded, so that damage anywhere in it has shown itself."""
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            image = open_picture(file, field, max_pixels)
            image.load()
            return flatten(image), _facts(image)
    except BadMedia:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(field, max_pixels) from error
    except OSError as error:
        raise _bad(field, "it can't be opened, or it is damaged or cut short") from error
    except Exception as error:
        # Pillow's decoders raise nearly anything on a hostile file: SyntaxError, struct.error, KeyError...
        raise _bad(field, "it is damaged") from error


def identify(file: BinaryIO) -> Image.Image:
    """A picture of one of `FORMATS`, its header read and no more. Pillow's errors."""
    if "HEIF" not in Image.OPEN:
        pillow_heif.register_heif_opener()
    return Image.open(file, formats=FORMATS)


def open_picture(file: BinaryIO, field: str, max_pixels: int) -> Image.Image:
    """As `identify`, and `BadMedia` naming `field` for what is no picture, too large, or of a pixel type that has no
    agreed meaning."""
    try:
        image = identify(file)
    except UnidentifiedImageError as error:
        raise _bad(field, "it is not a picture of a known kind") from error
    if image.width * image.height > max_pixels:
        raise _too_large(field, max_pixels)
    if image.mode not in PLAIN_MODES | SIXTEEN_BIT_MODES:
        raise _bad(field, f"its pixel type (mode {image.mode}) has no agreed 8-bit meaning")
    return image


def _too_large(field: str, max_pixels: int) -> BadMedia:
    return _bad(field, f"it has more than {max_pixels} pixels")


def _facts(image: Image.Image) -> PictureFacts:
    orientation = _orientation(image)
    # Orientations 5..8 lie on their side.
    width, height = image.size[::-1] if orientation >= 5 else image.size
    return PictureFacts(width, height, orientation, image.mode, image.format or "")


def _orientation(image: Image.Image) -> int:
    """1..8. Broken EXIF doesn't break a picture that decodes: it counts as upright."""
    try:
        stored = int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:
        return 1
    return stored if stored in UPRIGHT else 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def flatten(image: Image.Image) -> Image.Image:
    """Any accepted mode to RGB on black, as it lies."""
    if image.mode in SIXTEEN_BIT_MODES:
        return _high_byte(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layers = image.convert("RGBA")
    black = Image.new("RGB", image.size)
    black.paste(layers.convert("RGB"), mask=layers.getchannel("A"))
    return black


def _high_byte(image: Image.Image) -> Image.Image:
    """16-bit grey to 8-bit grey, its transparent value (PNG tRNS) to black. Pillow's own conversion would clip."""
    grey = np.asarray(image)
    transparent = image.info.get("transparency")
    opaque = grey if transparent is None else np.where(grey == transparent, 0, grey)
    return Image.fromarray((opaque >> 8).astype(np.uint8))

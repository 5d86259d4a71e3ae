"""The filters that make ffmpeg convert frames as ComfyUI does, and the 16-bit words that a 10-bit encoder is handed.

    uint8 rgb24 or uint16 rgb48  --ffmpeg's scaler-->  yuv420p, yuv444p or yuv420p10le, BT.709, limited range

The 8-bit frames of every clip are made where they are decoded (`vae.video_pixels.to_bytes`). Read by `encode_command`.

The conversion runs in ffmpeg (numpy takes longer than the encoder does). swscale's `bilinear` with no further flags is
the one that ComfyUI's library call resolves to: its planes equal the recorded ones, while `bicubic` (ffmpeg's own
default), `accurate_rnd` and zscale differ, the first by up to 11 levels in chroma.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import PixelFormat

TAGS = {"color_range": "tv", "color_primaries": "bt709", "color_trc": "iec61966-2-1", "colorspace": "bt709"}
"""What the stream says of itself: H.273 primaries 1, transfer 13 (sRGB), matrix 1 (conditioning contract §6)."""


def to_words(frames: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Finite values of any float dtype, 1.0 = white -> 16 bits, truncated and clipped (conditioning contract §6)."""
    scaled: NDArray[np.float32] = np.clip(frames.astype(np.float32) * np.float32(65535), 0, 65535)
    return scaled.astype(np.uint16)


def to_yuv(stream: Any, pixels: PixelFormat = "yuv420p", matrix: str = "bt709") -> Any:
    """Append the conversion from full-range RGB to limited-range YUV to an ffmpeg-python stream."""
    converted = stream.filter("scale", flags="bilinear", in_range="pc", out_color_matrix=matrix, out_range="tv")
    return converted.filter("format", pixels)


def tagged(stream: Any) -> Any:
    """Write `TAGS` on every frame, so that no encoder or later filter guesses others."""
    return stream.filter(
        "setparams",
        range=TAGS["color_range"],
        color_primaries=TAGS["color_primaries"],
        color_trc=TAGS["color_trc"],
        colorspace=TAGS["colorspace"],
    )

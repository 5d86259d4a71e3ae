"""Words by truncation, and ffmpeg's planes against the conversion written out in float64."""

import subprocess

import ffmpeg
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.media.colour import to_words, to_yuv


@given(st.floats(-2, 2, width=32))
def test_words_are_truncated_and_clipped(value: float) -> None:
    frame = np.full((1, 1, 1, 3), value, np.float32)
    want = int(min(max(float(np.float32(value) * np.float32(65535)), 0), 65535))
    assert (to_words(frame) == want).all()


def test_half_precision_frames_are_scaled_in_single() -> None:
    frame = np.full((1, 1, 1, 3), 0.93701171875, np.float16)
    assert (to_words(frame) == int(np.float32(0.93701171875) * 65535)).all()


def luma_and_chroma(rgb: np.ndarray) -> np.ndarray:
    """BT.709 in limited range (ITU-R BT.709-6 §3), one colour [3] -> Y, Cb, Cr."""
    r, g, b = rgb / 255
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    return np.array([16 + 219 * y, 128 + 224 * (b - y) / 1.8556, 128 + 224 * (r - y) / 1.5748])


@pytest.mark.parametrize("size", [(64, 48), (1344, 768), (96, 32)])
def test_flat_colours_are_bt709_limited(tool, size: tuple[int, int]) -> None:
    width, height = size
    colours = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (17, 130, 201)])
    frames = np.broadcast_to(colours[:, None, None].astype(np.uint8), (6, height, width, 3))
    raw = ffmpeg.input("pipe:0", format="rawvideo", pix_fmt="rgb24", video_size=size, framerate=24)
    out = ffmpeg.output(to_yuv(raw), "pipe:1", format="rawvideo", pix_fmt="yuv420p")
    command = [str(tool.path), "-loglevel", "error", *ffmpeg.get_args(out)]
    done = subprocess.run(command, input=np.ascontiguousarray(frames).tobytes(), capture_output=True, check=True)
    planes = np.frombuffer(done.stdout, np.uint8).reshape(6, -1)
    area = width * height
    for colour, plane in zip(colours, planes, strict=True):
        parts = plane[:area], plane[area : area * 5 // 4], plane[area * 5 // 4 :]
        for part, want in zip(parts, luma_and_chroma(colour), strict=True):
            assert np.abs(part.astype(float) - want).max() <= 1

"""Contact sheets: which frames, where the sound swings, any size, length and container, and what can't be drawn."""

import io
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from h3runtime.errors import BadMedia
from h3runtime.media.clip_sketch import ClipSketch, sketch_clip, spread
from h3runtime.media.contact_sheet import (
    INNER,
    LANE,
    LANES,
    MARGIN,
    PAPER,
    WIDTH,
    Grid,
    draw_sheet,
    sheet_png,
    tick_step,
)
from tests.clips import SAMPLE_RATE, moving, tones, write_clip


def opened(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def sketched(path: Path, columns: int = 100) -> ClipSketch:
    return sketch_clip(path, lambda aspect: Grid.of(aspect).count, columns)


@given(st.integers(1, 400), st.integers(1, 20))
def test_frames_are_spread_from_the_first_to_the_last(frames: int, count: int) -> None:
    found = spread(frames, count)
    assert len(found) == len(set(found)) == min(frames, count) and found[0] == 0
    if len(found) > 1:
        steps = np.diff(found)
        assert found[-1] == frames - 1 and steps.max() - steps.min() <= 1


@given(st.floats(1 / 4, 4))
def test_a_grid_holds_about_a_dozen_pictures(aspect: float) -> None:
    grid = Grid.of(aspect)
    assert 8 <= grid.count <= 16
    assert grid.columns * grid.picture_width <= INNER


@given(st.floats(0.05, 4000))
def test_ticks_are_few_and_round(seconds: float) -> None:
    step = tick_step(seconds)
    assert seconds / step <= 10 + 1e-6 and step >= 0.1
    assert f"{step:e}"[0] in "125"


def test_the_frames_of_the_clip_are_held_as_they_are(tmp_path: Path) -> None:
    frames = moving(39, 48, 64)
    found = sketched(write_clip(tmp_path / "a.mkv", frames, tones(52_000)))
    assert (found.width, found.height, found.frames) == (64, 48, 39)
    assert found.indices[0] == 0 and found.indices[-1] == 38 and found.seconds == pytest.approx(39 / 24)
    for index, picture in zip(found.indices, found.pictures, strict=True):
        assert np.array_equal(picture, frames[index])


@pytest.mark.parametrize("samples", [3, 1_000, 65_536, 150_000])
def test_the_envelope_is_that_of_the_samples(tmp_path: Path, samples: int) -> None:
    frames = max(1, round(samples / SAMPLE_RATE * 24))
    sound = np.random.default_rng(0).uniform(-0.7, 0.7, (2, samples)).astype(np.float32)
    found = sketched(write_clip(tmp_path / "a.mkv", moving(frames), sound), columns=70).sound
    assert found is not None
    edges = np.round(np.arange(71) * (frames / 24 * SAMPLE_RATE / 70)).astype(int)
    for column in range(70):
        part = sound[:, edges[column] : edges[column + 1]]
        assert np.array_equal(found.greatest[:, column], part.max(1, initial=0))
        assert np.array_equal(found.least[:, column], part.min(1, initial=0))


def test_the_waveform_shares_the_clock_of_the_frames(tmp_path: Path) -> None:
    """A click in the left channel at 3/4 of the clip is drawn at 3/4 of the width, in the left lane's colour alone."""
    sound = np.zeros((2, 2 * SAMPLE_RATE), np.float32)
    sound[0, 48_000:48_200] = 0.5
    sheet = opened(sheet_png(write_clip(tmp_path / "a.mkv", moving(48), sound), "x"))
    lanes = [np.argwhere((sheet == colour).all(-1)) for colour in LANES]
    tall = [np.flatnonzero(np.bincount(lane[:, 1], minlength=WIDTH) > LANE // 3) for lane in lanes]
    assert len(tall[1]) == 0 and abs(tall[0].mean() - (MARGIN + 0.75 * INNER)) < 4
    assert len(tall[0]) >= 2


@pytest.mark.parametrize(
    ("name", "codec", "pixels", "sound_codec", "rate"),
    [
        ("a.mp4", "libx264", "yuv420p", "aac", 32_000),
        ("a.mov", "libx264", "yuv420p", "pcm_s16le", 44_100),
        ("a.webm", "libvpx-vp9", "yuv420p", "libopus", 48_000),
    ],
)
def test_every_container_gives_a_sheet(
    tmp_path: Path, name: str, codec: str, pixels: str, sound_codec: str, rate: int
) -> None:
    samples = tones(rate)
    path = write_clip(
        tmp_path / name,
        moving(22),
        samples,
        codec=codec,
        pixel_format=pixels,
        sound_codec=sound_codec,
        sample_rate=rate,
    )
    sheet = opened(sheet_png(path, "a red ball", "seed 5"))
    assert sheet.shape[1:] == (WIDTH, 3) and sheet.shape[0] < 1000
    for colour in LANES:
        assert (sheet == colour).all(-1).sum() > INNER


@pytest.mark.parametrize(("width", "height", "frames"), [(32, 320, 5), (640, 32, 22), (64, 64, 1)])
def test_any_shape_and_length(tmp_path: Path, width: int, height: int, frames: int) -> None:
    sheet = opened(sheet_png(write_clip(tmp_path / "a.mkv", moving(frames, height, width)), "x"))
    assert sheet.shape[1] == WIDTH and sheet.shape[0] <= 4 * WIDTH
    assert (sheet[:, -MARGIN:] == PAPER).all()


@pytest.mark.parametrize("title", ["", "word " * 900, "w" * 5000, "a\nred\tball", "球 \udcff \x07", "Ж" * 700])
def test_any_prompt_is_a_title(title: str) -> None:
    picture = np.zeros((32, 32, 3), np.uint8)
    sketch = ClipSketch(32, 32, 1, Fraction(24), (0,), (picture,), None)
    sheet = draw_sheet(sketch, title)
    blank = draw_sheet(sketch, "")
    assert 0 <= sheet.height - blank.height <= 120
    assert (np.asarray(sheet)[:, -MARGIN:] == PAPER).all()


def test_the_same_clip_gives_the_same_sheet(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mkv", moving(5), tones(6_000))
    assert sheet_png(path, "x") == sheet_png(path, "x") != sheet_png(path, "y")


def test_a_file_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadMedia, match="clip"):
        sheet_png(write_clip(tmp_path / "a.wav", sound=tones(3_000), sound_codec="pcm_s16le"), "x")
    (tmp_path / "b.mp4").write_bytes(b"no clip")
    with pytest.raises(BadMedia, match="clip"):
        sheet_png(tmp_path / "b.mp4", "x")

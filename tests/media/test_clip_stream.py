"""Reading clips piece by piece: everything comes out once and in order, and what is no clip is one typed error."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from h3runtime.errors import BadMedia
from h3runtime.media.clip_stream import BLOCK, each_block, each_frame, outline
from tests.clips import moving, tones, write_clip


def sound_of(path: Path) -> np.ndarray:
    seen = outline(path, "a")
    start = seen.pictures.start if seen.pictures else None
    return np.concatenate(list(each_block(path, "a", start)), axis=1)


@pytest.mark.parametrize("suffix", [".mkv", ".nut", ".mov"])
def test_lossless_frames_and_samples_come_back_as_they_went(tmp_path: Path, suffix: str) -> None:
    frames, sound = moving(11), tones(2 * BLOCK + 5)
    codec, form = ("png", "rgb24") if suffix == ".mov" else ("ffv1", "bgr0")
    clip = write_clip(tmp_path / f"a{suffix}", frames, sound, codec=codec, pixel_format=form)
    assert np.array_equal(np.stack(list(each_frame(clip, "a"))), frames)
    assert np.array_equal(sound_of(clip), sound)
    assert [block.shape[1] for block in each_block(clip, "a")] == [BLOCK, BLOCK, 5]


def test_an_outline_is_what_the_file_holds(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mkv", moving(11), tones(16_000, 1), fps=Fraction(30000, 1001))
    seen = outline(clip, "a")
    assert seen.pictures is not None and seen.sound is not None
    assert (seen.pictures.width, seen.pictures.height, seen.pictures.frames) == (48, 32, 11)
    assert float(seen.pictures.rate) == pytest.approx(30000 / 1001, rel=1e-4)
    assert (seen.sound.rate, seen.sound.channels) == (32_000, 1)
    assert seen.sound.seconds == pytest.approx(0.5, abs=0.02)


def test_a_stream_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert outline(write_clip(tmp_path / "a.mkv", moving(3)), "a").sound is None
    assert outline(write_clip(tmp_path / "a.wav", None, tones(100)), "a").pictures is None


def test_sounds_of_two_containers_line_up(tmp_path: Path) -> None:
    """AAC's lead-in is cut by MP4's edit list and told by time stamps in the others."""
    frames, sound = moving(24, 32, 32), tones(32_000)
    made = [
        write_clip(tmp_path / name, frames, sound, codec="mpeg4", pixel_format="yuv420p", sound_codec="aac")
        for name in ("a.mp4", "a.mkv", "a.ts")
    ]
    first, *others = (sound_of(clip)[:, :30_000] for clip in made)
    for other in others:
        assert np.array_equal(first, other)
    # 1,024 samples late, a tone of 440 Hz would be at 0.87.
    assert np.corrcoef(first[0, 4000:28_000], sound[0, 4000:28_000])[0, 1] > 0.99


def test_full_range_is_read_as_such(tmp_path: Path) -> None:
    """A JPEG's luma goes from 0 to 255."""
    flat = np.full((2, 32, 32, 3), 250, np.uint8)
    clip = write_clip(tmp_path / "a.mkv", flat, codec="mjpeg", pixel_format="yuvj420p")
    assert np.abs(next(each_frame(clip, "a")).astype(int) - 250).max() <= 2


@pytest.mark.parametrize("body", [b"", b"not a clip", b"\x00\x00\x00\x20ftypisom" + bytes(64)])
def test_no_clip_is_typed(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "a.mp4").write_bytes(body)
    with pytest.raises(BadMedia, match="source"):
        outline(tmp_path / "a.mp4", "source")


def test_subtitles_alone_are_no_clip(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    with pytest.raises(BadMedia, match="neither pictures nor sound"):
        outline(tmp_path / "a.srt", "a")


def test_samples_that_are_not_finite_are_typed(tmp_path: Path) -> None:
    sound = tones(5000)
    sound[1, 4000] = np.nan
    clip = write_clip(tmp_path / "a.wav", None, sound)
    with pytest.raises(BadMedia, match="not finite"):
        list(each_block(clip, "a"))


def test_frames_that_change_size_are_typed(tmp_path: Path) -> None:
    small = write_clip(tmp_path / "s.ts", moving(5), codec="mpeg2video", pixel_format="yuv420p")
    large = write_clip(tmp_path / "l.ts", moving(5, 64, 64), codec="mpeg2video", pixel_format="yuv420p")
    joined = tmp_path / "j.ts"
    joined.write_bytes(small.read_bytes() + large.read_bytes())
    with pytest.raises(BadMedia, match="change size at frame"):
        list(each_frame(joined, "a"))

"""Frames of real files, by their times: which picture is where, how it lies, in what colours, and what is refused."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from h3runtime.core import ClipInput, MediaFile, SoundInput
from h3runtime.errors import BadMedia
from h3runtime.media import pictures
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from tests.media.made import CORNER, beeps, make_clip, onsets, picture, which

ROUND = {"crf": "0"}


def frames_of(path: Path, frames: int, first: int = 0, width: int = 64, height: int = 48, fit="stretch"):
    return list(clip_frames(ClipInput(MediaFile(path, "source"), first, frames), width, height, fit))


def shown(path: Path, frames: int, first: int = 0) -> list[int]:
    return [which(frame) for frame in frames_of(path, frames, first)]


KINDS = [
    ("a.mp4", "libx264", "yuv420p"),
    ("a.mkv", "libx264", "yuv444p"),
    ("a.mp4", "libx265", "yuv420p10le"),
    ("a.webm", "libvpx-vp9", "yuv420p"),
    ("a.webm", "libvpx", "yuv420p"),
    ("a.avi", "mpeg4", "yuv420p"),
    ("a.avi", "libx264", "yuv420p"),
    ("a.ts", "libx264", "yuv420p"),
    ("a.mkv", "ffv1", "gray"),
]


@pytest.mark.parametrize(("name", "codec", "pixel_format"), KINDS)
def test_every_container_and_codec_gives_its_pictures_in_order(tmp_path: Path, name, codec, pixel_format) -> None:
    clip = make_clip(tmp_path / name, codec, times=range(12), pixel_format=pixel_format)
    assert shown(clip, 12) == list(range(12))
    assert shown(clip, 3, first=5) == [5, 6, 7]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_variable_rate_by_its_times(tmp_path: Path, name: str) -> None:
    times = [0, 10, 15, 60, 61, 62, 100]
    clip = make_clip(tmp_path / name, times=times, base=Fraction(1, 120))
    assert shown(clip, 20) == [0, 0, 1, *([2] * 9), *([5] * 8)]


def test_one_and_sixty_pictures_a_second(tmp_path: Path) -> None:
    slow = make_clip(tmp_path / "slow.mp4", times=range(3), base=Fraction(1))
    assert shown(slow, 72) == [0] * 24 + [1] * 24 + [2] * 24
    fast = make_clip(tmp_path / "fast.mp4", times=range(30), base=Fraction(1, 60))
    assert shown(fast, 12) == [1, 3, 6, 8, 11, 13, 16, 18, 21, 23, 26, 28]


def test_a_clip_that_begins_later_begins_with_its_first_picture(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mkv", times=range(48, 60))
    assert shown(clip, 12) == list(range(12))


def test_beginning_inside_a_group_of_pictures(tmp_path: Path) -> None:
    """An edit list that starts at picture 3: pictures before it are decoded and not shown."""
    whole = make_clip(tmp_path / "whole.mp4", times=range(12))
    cut = tmp_path / "cut.mp4"
    with av.open(str(whole)) as source, av.open(str(cut), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.size:
                shift = round(Fraction(3, 24) / stream.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, copy
                target.mux(packet)
    assert shown(cut, 9) == list(range(3, 12))


@pytest.mark.parametrize(("turned", "corner"), [(90, (-1, 0)), (-90, (0, -1)), (180, (-1, -1))])
def test_rotation_is_applied(tmp_path: Path, turned: int, corner: tuple[int, int]) -> None:
    """PyAV writes counterclockwise turns: the upper left corner goes down for 90."""
    clip = make_clip(tmp_path / "a.mov", times=range(2), turned=turned)
    width, height = (48, 64) if turned in (90, -90) else (64, 48)
    frame = frames_of(clip, 2, width=width, height=height)[1]
    bright = {(y, x) for y in (0, -1) for x in (0, -1) if frame[y, x].min() > 128}
    assert bright == {corner}


def test_wide_pixels_are_made_square_before_the_middle_is_cut_out(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", times=range(2), width=64, height=64, aspect=Fraction(2, 1))
    frame = frames_of(clip, 1, width=64, height=64, fit="cover")[0]
    # Upright it is 128 x 64, so the middle half of the width is left: of the corner's 16 columns none.
    assert frame[:CORNER, :4].max() < 128
    whole = frames_of(clip, 1, width=128, height=64)[0]
    assert whole[4, 2 * CORNER - 4].min() > 128 and whole[4, 2 * CORNER + 6].max() < 128


@pytest.mark.parametrize("fit", ["stretch", "cover"])
def test_fitting_is_that_of_pictures(tmp_path: Path, fit: str) -> None:
    clip = make_clip(tmp_path / "a.mkv", "ffv1", times=range(2), pixel_format="bgr0")
    want = getattr(pictures, fit)(picture(1, 64, 48), 32, 32)
    assert np.array_equal(frames_of(clip, 2, width=32, height=32, fit=fit)[1], want)


@pytest.mark.parametrize(("matrix", "is_full"), [(1, False), (1, True), (5, False), (5, True)])
def test_colours_by_the_matrix_and_range_that_the_file_names(tmp_path: Path, matrix: int, is_full: bool) -> None:
    colour = np.empty((48, 64, 3), np.uint8)
    colour[:] = 200, 60, 90
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p"
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 2 if is_full else 1
        frame = av.VideoFrame.from_ndarray(colour, format="rgb24").reformat(
            format="yuv444p", dst_colorspace=matrix, src_color_range=2, dst_color_range=2 if is_full else 1
        )
        frame.pts, frame.time_base = 0, Fraction(1, 24)
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    got = frames_of(path, 1)[0]
    assert np.abs(got.astype(int) - colour).max() <= 3


@pytest.mark.parametrize("kind", ["webp", "gif", "png"])
def test_animated_pictures_are_clips(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    stills = [Image.fromarray(picture(i, 64, 48)) for i in range(3)]
    exact = {"lossless": True} if kind == "webp" else {}
    stills[0].save(path, save_all=True, append_images=stills[1:], duration=[500, 250, 130], loop=0, **exact)
    got = shown(path, 21)
    assert got == [0] * 12 + [1] * 6 + [2] * 3
    with pytest.raises(BadMedia, match="source: it ends 1 frames too early"):
        frames_of(path, 22)


def test_animation_lies_on_black(tmp_path: Path) -> None:
    path = tmp_path / "a.webp"
    stills = [Image.new("RGBA", (64, 48), (200, 100, 50, alpha)) for alpha in (0, 255)]
    stills[0].save(path, save_all=True, append_images=stills[1:], duration=50, lossless=True, exact=True)
    first, *_, last = frames_of(path, 2)
    assert first.max() == 0 and tuple(last[0, 0]) == (200, 100, 50)


def test_frames_are_arrays_of_their_own(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", times=range(2), base=Fraction(1, 12))
    first, second, *_ = frames_of(clip, 4)
    assert not np.shares_memory(first, second)


def test_it_streams(tmp_path: Path) -> None:
    """Asking for one frame decodes no more than a few, and a broken end isn't met."""
    clip = make_clip(tmp_path / "a.mp4", times=range(30), options={"g": "5", "bf": "0"})
    data = bytearray(clip.read_bytes())
    with av.open(str(clip)) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.size][25:]
    for position, size in places:
        data[position : position + size] = b"\xff" * size
    clip.write_bytes(data)
    assert shown(clip, 3) == [0, 1, 2]


def test_pictures_that_change_size_are_refused(tmp_path: Path) -> None:
    small = make_clip(tmp_path / "small.ts", times=range(5), width=64, height=48)
    large = make_clip(tmp_path / "large.ts", times=range(5), width=96, height=64)
    both = tmp_path / "both.ts"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    with pytest.raises(BadMedia, match="source: its pictures change size"):
        frames_of(both, 10)


def test_a_clip_that_is_too_short_says_by_how_much(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", times=range(12))
    with pytest.raises(BadMedia, match="3 frames too early for 10"):
        frames_of(clip, 10, first=5)


def test_a_sound_has_no_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("hello")
    with pytest.raises(BadMedia, match="text"):
        frames_of(path, 1)


def test_beeps_stay_on_the_cuts_of_a_clip_of_two_rates(tmp_path: Path) -> None:
    """A26: one second at 15 fps, one at 60; pictures change where the beeps are, the last of them near the end."""
    times = [*range(0, 120, 8), *range(120, 240, 2)]
    looks = [picture(4 if time < 120 else 20 if time < 234 else 28, 64, 48) for time in times]
    sound = beeps([0.0, 1.0, 234 / 120], 2.0, 48_000)
    clip = make_clip(tmp_path / "a.mp4", times=times, base=Fraction(1, 120), pictures=looks, sound=sound)
    got = shown(clip, 48)
    changes = [0, *(i for i in range(1, 48) if got[i] != got[i - 1])]
    heard = onsets(read_sound_in(SoundInput(MediaFile(clip, "source")))[0])
    assert len(changes) == len(heard) == 3
    assert all(abs(cut / 24 - beep) < 1 / 24 for cut, beep in zip(changes, heard, strict=True))

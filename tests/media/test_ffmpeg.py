"""The system's ffmpeg is taken first, another one is only taken for a stated reason."""

import time
from pathlib import Path

import pytest

from h3runtime.errors import BackendUnavailable
from h3runtime.media import ffmpeg
from h3runtime.media.ffmpeg import FFmpeg, ask_ffmpeg, find_ffmpeg

ENCODERS = """Encoders:
 V..... = Video
 ------
 V....D libx264              libx264 H.264 (codec h264)
 V..X.. h264_odd             something
 A....D aac                  AAC (Advanced Audio Coding)
"""


def program(folder: Path, body: str) -> Path:
    path = folder / "ffmpeg"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def answering(folder: Path, encoders: str = ENCODERS) -> Path:
    (folder / "encoders").write_text(encoders)
    body = f'case "$2" in -version) echo "ffmpeg version 6.1-test Copyright";; *) cat "{folder / "encoders"}";; esac'
    return program(folder, body)


def test_the_one_on_the_path_comes_first(tmp_path: Path) -> None:
    path = answering(tmp_path)
    tool = find_ffmpeg(str(tmp_path))
    assert (tool.path, tool.version, tool.video_encoder("h264"), tool.why) == (
        path,
        "6.1-test",
        "libx264",
        "ffmpeg on PATH",
    )
    assert tool.encoders == {"libx264", "h264_odd", "aac"}


def test_without_one_the_bundled_one_is_taken(tools) -> None:
    assert tools["bundled"].why == "imageio-ffmpeg's binary"
    assert tools["bundled"].video_encoder("h264") == "libx264" and "aac" in tools["bundled"].encoders


@pytest.mark.parametrize(
    ("body", "reason"),
    [("exit 1", "status 1"), ("echo hello", "doesn't answer like ffmpeg"), ("kill -9 $$", "status -9")],
)
def test_a_broken_one_is_passed_over_and_named(tmp_path: Path, body: str, reason: str) -> None:
    program(tmp_path, body)
    tool = find_ffmpeg(str(tmp_path))
    assert tool.path.parent != tmp_path and reason in tool.why


def test_pixels_are_asked_for_once_and_only_where_they_matter(tmp_path: Path) -> None:
    path = answering(tmp_path)
    tool = find_ffmpeg(str(tmp_path))
    assert tool.video_encoder("h264", "yuv420p") == "libx264" and tool.pixel_formats == {}
    listed = 'if [ "$3" = encoder=libx264 ]; then echo "    Supported pixel formats: yuv420p yuv420p10le gray"; fi'
    path.write_text(f"#!/bin/sh\n{listed}\n")
    assert tool.video_encoder("h264", "yuv420p10le") == "libx264"
    path.write_text("#!/bin/sh\nexit 1\n")
    assert tool.video_encoder("h264", "yuv444p") is None
    assert tool.pixel_formats == {"libx264": {"yuv420p", "yuv420p10le", "gray"}}


@pytest.mark.parametrize("body", ["exit 1", "echo nothing"])
def test_an_encoder_that_does_not_say_takes_the_usual_pixels(tmp_path: Path, body: str) -> None:
    answering(tmp_path)
    tool = find_ffmpeg(str(tmp_path))
    program(tmp_path, body)
    assert tool.video_encoder("h264", "yuv444p") is None and tool.video_encoder("h264", "yuv420p") == "libx264"


@pytest.mark.parametrize(
    ("version", "major"), [("5.1.9-0+deb12u1", 5), ("n7.1", 7), ("6.1-test", 6), ("N-118331-gabc", None), ("git", None)]
)
def test_the_version_in_front(tmp_path: Path, version: str, major: int | None) -> None:
    assert FFmpeg(tmp_path, version, frozenset(), "a test").major == major


def test_one_without_h264_is_passed_over_and_named(tmp_path: Path) -> None:
    answering(tmp_path, ENCODERS.replace("libx264", "libvpx"))
    tool = find_ffmpeg(str(tmp_path))
    assert tool.path.parent != tmp_path and "no H.264 encoder" in tool.why


def test_openh264_will_do(tmp_path: Path) -> None:
    answering(tmp_path, ENCODERS.replace("libx264", "libopenh264"))
    assert find_ffmpeg(str(tmp_path)).video_encoder("h264") == "libopenh264"


def test_none_at_all_is_one_error_with_every_reason(tmp_path: Path, monkeypatch) -> None:
    def none() -> str:
        raise RuntimeError

    monkeypatch.setattr(ffmpeg.imageio_ffmpeg, "get_ffmpeg_exe", none)
    with pytest.raises(BackendUnavailable, match="none on PATH"):
        find_ffmpeg(str(tmp_path))
    answering(tmp_path, ENCODERS.replace("aac", "mp2"))
    with pytest.raises(BackendUnavailable, match="no AAC encoder"):
        find_ffmpeg(str(tmp_path))


def test_one_that_hangs_is_ended(place) -> None:
    path = program(place, f"echo $$ > {place / 'group'}; sleep 600 & wait")
    started = time.monotonic()
    with pytest.raises(BackendUnavailable, match=r"within 0\.3 s"):
        ask_ffmpeg(path, "a test", seconds=0.3)
    assert time.monotonic() - started < 60


def test_one_that_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "ffmpeg"
    path.write_bytes(b"\x00\x01")
    path.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="can't be started"):
        ask_ffmpeg(path, "a test")

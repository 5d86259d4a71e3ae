"""What goes into which container, what clashes, and what the ffmpeg at hand lacks: told, never tried."""

from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.core import AudioCodec, Container, EncodeSettings, PixelFormat, VideoCodec
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.formats import (
    CONTAINERS,
    FormatWish,
    codecs_of,
    container_of,
    judge_format,
    media_type_of,
    settle,
    suffix_of,
)

EVERYTHING = frozenset({"yuv420p", "yuv444p", "yuv420p10le"})
FULL = FFmpeg(
    Path("ffmpeg"),
    "full",
    frozenset({"libx264", "libx265", "libvpx-vp9", "libsvtav1", "libaom-av1", "aac", "libopus", "flac", "pcm_s16le"}),
    "a test",
    {
        "libx264": EVERYTHING,
        "libx265": EVERYTHING,
        "libvpx-vp9": EVERYTHING,
        "libsvtav1": frozenset({"yuv420p", "yuv420p10le"}),
        "libaom-av1": EVERYTHING,
    },
)
BARE = FFmpeg(
    Path("ffmpeg"), "bare", frozenset({"libopenh264", "aac"}), "a test", {"libopenh264": frozenset({"yuv420p"})}
)


def fields(raw: object, tool: FFmpeg = FULL) -> list[str]:
    return [offence.field.removeprefix("format.") for offence in judge_format(raw, tool)]


def test_what_each_container_holds() -> None:
    """Service-contract: mov cannot hold what QuickTime has no code for; WebM is VP9 or AV1 beside Opus."""
    held = {
        (container, video, audio)
        for container, video, audio in product(get_args(Container), get_args(VideoCodec), get_args(AudioCodec))
        if not fields({"container": container, "video_codec": video, "audio_codec": audio})
    }
    assert held == {
        *product(["mp4"], ["h264", "hevc", "vp9", "av1"], ["aac", "opus", "flac"]),
        *product(["mov"], ["h264", "hevc"], ["aac", "pcm_s16le"]),
        *product(["mkv"], ["h264", "hevc", "vp9", "av1"], ["aac", "opus", "flac", "pcm_s16le"]),
        *product(["webm"], ["vp9", "av1"], ["opus"]),
    }


@pytest.mark.parametrize(
    ("raw", "wrong"),
    [
        ({}, []),
        (None, []),
        ("mp4", []),
        ({"container": "webm"}, []),
        ({"container": "webm", "video_codec": "h264"}, ["video_codec", "container"]),
        ({"container": "mp4", "audio_codec": "pcm_s16le"}, ["audio_codec", "container"]),
        ({"audio_codec": "pcm_s16le"}, ["audio_codec"]),
        (
            {"container": "mov", "video_codec": "av1", "audio_codec": "opus"},
            ["video_codec", "container", "audio_codec", "container"],
        ),
        ({"container": "webm", "sample_rate": 32000}, ["sample_rate"]),
        ({"audio_codec": "opus", "sample_rate": 44100}, ["sample_rate", "audio_codec"]),
        ({"audio_codec": "opus", "sample_rate": 48000}, []),
        ({"audio_codec": "opus", "sample_rate": 44100.0}, ["sample_rate", "audio_codec"]),
        ({"audio_codec": "flac", "audio_bitrate": 128000}, ["audio_bitrate", "audio_codec"]),
        ({"container": "mkv", "audio_codec": "pcm_s16le", "audio_bitrate": "128k"}, ["audio_bitrate", "audio_codec"]),
        ({"audio_codec": "aac", "audio_bitrate": "128k"}, []),
        # What is wrong by itself is told by whoever reads single fields.
        ({"container": "webm", "video_codec": "h264", "crf": 99, "fps": True, "x": 1}, ["video_codec", "container"]),
        ({"container": "avi", "video_codec": "vp9"}, []),
    ],
)  # fmt: skip
def test_fields_that_clash_are_both_named(raw, wrong: list[str]) -> None:
    assert fields(raw) == wrong


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["webm", "opus", "64k"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None)
@given(JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(FormatWish.__slots__, JSON)))
def test_no_json_is_too_odd_to_be_judged(raw) -> None:
    for offence in judge_format(raw, FULL):
        assert offence.field.startswith("format.") and offence.legal
    assert settle(FormatWish.of(raw)).container in CONTAINERS


def test_a_clash_says_what_would_go() -> None:
    video, container = judge_format({"container": "webm", "video_codec": "hevc"}, FULL)
    assert (video.legal, container.legal) == ("vp9, av1", "mp4, mov, mkv")
    assert video.message == container.message == "video_codec hevc does not go with container webm"
    (rate,) = judge_format({"container": "webm", "sample_rate": 44100}, FULL)
    assert rate.legal == "48000"


@pytest.mark.parametrize(
    ("raw", "field", "legal"),
    [
        ({"video_codec": "av1"}, "video_codec", "h264"),
        ({"container": "mkv", "audio_codec": "flac"}, "audio_codec", "aac"),
        ({"pixel_format": "yuv444p"}, "pixel_format", "yuv420p"),
        ({"crf": 20}, "crf", "absent"),
        ({"container": "webm"}, "video_codec", "none"),
    ],
)
def test_what_the_ffmpeg_lacks_is_told_with_what_it_has(raw, field: str, legal: str) -> None:
    offence = judge_format(raw, BARE)[0]
    assert (offence.field, offence.legal) == (f"format.{field}", legal)


def test_the_encoder_follows_the_pixels() -> None:
    assert FULL.video_encoder("av1") == FULL.video_encoder("av1", "yuv420p10le") == "libsvtav1"
    assert FULL.video_encoder("av1", "yuv444p") == "libaom-av1"
    assert BARE.video_encoder("h264", "yuv444p") is None and BARE.video_encoder("hevc") is None


def test_what_ready_lists() -> None:
    assert codecs_of(FULL) == {
        "container": ["mp4", "mov", "mkv", "webm"],
        "video_codec": list(get_args(VideoCodec)),
        "pixel_format": list(get_args(PixelFormat)),
        "audio_codec": list(get_args(AudioCodec)),
    }
    assert codecs_of(BARE) == {
        "container": ["mp4", "mov", "mkv"],
        "video_codec": ["h264"],
        "pixel_format": ["yuv420p"],
        "audio_codec": ["aac"],
    }


@pytest.mark.parametrize(
    ("wish", "settled"),
    [
        ({}, EncodeSettings()),
        ({"container": "mov"}, EncodeSettings(container="mov")),
        ({"container": "webm"}, EncodeSettings("webm", "vp9", audio_codec="opus", sample_rate=48_000)),
        ({"audio_codec": "opus"}, EncodeSettings(audio_codec="opus", sample_rate=48_000)),
        ({"fps": 30, "crf": 0, "loudness": "none"}, EncodeSettings(fps=30, crf=0, loudness="none")),
        ({"audio_bitrate": "96k"}, EncodeSettings(audio_bitrate=96_000)),
    ],
)
def test_defaults_are_the_containers(wish, settled: EncodeSettings) -> None:
    assert settle(FormatWish.of(wish)) == settled


def test_names_and_types() -> None:
    assert [suffix_of(name) for name in CONTAINERS] == [".mp4", ".mov", ".mkv", ".webm"]
    assert all(container_of(suffix_of(name)) == name for name in CONTAINERS) and container_of(".avi") is None
    types = ["video/mp4", "video/quicktime", "video/x-matroska", "video/webm"]
    assert [media_type_of(name) for name in CONTAINERS] == types

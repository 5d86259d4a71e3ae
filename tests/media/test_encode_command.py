"""ffmpeg's arguments: the default's are ComfyUI's, others hold what their codec and container need."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3runtime.core import EncodeSettings
from h3runtime.errors import BackendUnavailable, InvalidRequest
from h3runtime.media.encode_command import ClipShape, mux_command
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.formats import FormatWish, settle
from h3runtime.media.sound import wav_bytes
from tests.media.made import tone

ENCODERS = frozenset({"libx264", "libx265", "libvpx-vp9", "libsvtav1", "aac", "libopus", "flac", "pcm_s16le"})
TOOL = FFmpeg(Path("/bin/ffmpeg"), "7.1", ENCODERS, "a test")
OLD = FFmpeg(Path("/bin/ffmpeg"), "5.1.9-0+deb12u1", ENCODERS, "a test")


def arguments(tool: FFmpeg = TOOL, **form: Any) -> list[str]:
    return mux_command(tool, ClipShape(320, 192, 39), Path("s.wav"), Path("o"), settle(FormatWish.of(form)))


def has(given: list[str], *pair: str) -> bool:
    return any(tuple(given[at : at + 2]) == pair for at in range(len(given)))


def test_the_default_is_never_changed_by_accident() -> None:
    """Conditioning contract §6: no more than ComfyUI has. Every figure of quality and of time was taken with it."""
    graph = (
        "[0]scale=flags=bilinear:in_range=pc:out_color_matrix=bt709:out_range=tv[s0];[s0]format=yuv420p[s1];"
        "[s1]setparams=color_primaries=bt709:color_trc=iec61966-2-1:colorspace=bt709:range=tv[s2];"
        "[1]asetnsamples=n=2147483647:p=0[s3]"
    )
    assert arguments() == (
        "/bin/ffmpeg -hide_banner -nostdin -nostats -xerror -loglevel error "
        "-f rawvideo -video_size 320x192 -framerate 24 -pix_fmt rgb24 -protocol_whitelist pipe -i pipe:0 "
        f"-f wav -protocol_whitelist file -i s.wav -filter_complex {graph} -map [s2] -map [s3] -f mp4 -ar 32000 "
        "-c:a aac -c:v libx264 -color_primaries bt709 -color_range tv -color_trc iec61966-2-1 -colorspace bt709 "
        "-max_interleave_delta 0 -movflags use_metadata_tags+faststart -pix_fmt yuv420p o"
    ).split(" ")
    assert arguments(container="mp4", fps=24, sample_rate=32000, loudness="none") == arguments()


@pytest.mark.parametrize(
    ("form", "pairs"),
    [
        ({"crf": 0}, [("-crf", "0")]),
        ({"container": "webm"}, [("-crf", "34"), ("-b:v", "0"), ("-ar", "48000"), ("-f", "webm")]),
        ({"container": "webm"}, [("-fflags", "+bitexact")]),
        ({"container": "webm", "crf": 51, "audio_bitrate": "96k"}, [("-crf", "51"), ("-b:v", "0"), ("-b:a", "96000")]),
        ({"video_codec": "av1"}, [("-crf", "35"), ("-preset", "8")]),
        # SVT-AV1 takes 0 for none.
        ({"video_codec": "av1", "crf": 0}, [("-crf", "1")]),
        ({"video_codec": "hevc"}, [("-crf", "23"), ("-tag:v", "hvc1"), ("-movflags", "use_metadata_tags+faststart")]),
        ({"container": "mov", "video_codec": "hevc"}, [("-tag:v", "hvc1"), ("-f", "mov")]),
        ({"audio_codec": "flac"}, [("-strict", "experimental"), ("-bits_per_raw_sample:a", "24")]),
        ({"fps": 29.97}, [("-framerate", "30000/1001")]),
        ({"container": "mkv"}, [("-f", "matroska")]),
    ],
)  # fmt: skip
def test_what_others_need(form, pairs) -> None:
    given = arguments(**form)
    assert all(has(given, *pair) for pair in pairs), given


@pytest.mark.parametrize(
    ("form", "flag"),
    [
        ({"container": "mkv", "video_codec": "hevc"}, "-tag:v"),
        ({"container": "mkv", "audio_codec": "flac"}, "-strict"),
        ({}, "-crf"),
        ({"container": "mkv"}, "-movflags"),
    ],
)
def test_what_others_do_without(form, flag: str) -> None:
    assert flag not in arguments(**form)


def test_that_the_sound_is_encoded_first_changes_no_byte(tool: FFmpeg, tmp_path: Path) -> None:
    """Longer than the ten seconds that a muxer holds one stream for another by itself."""
    frames, wav = 250, tmp_path / "s.wav"
    wav.write_bytes(wav_bytes(tone(frames / 24, 32_000)[None], 32_000))
    ours = mux_command(tool, ClipShape(32, 32, frames), wav, tmp_path / "o.mp4", EncodeSettings())
    line = " ".join(ours).replace(";[1]asetnsamples=n=2147483647:p=0[s3]", "")
    plain = line.replace("-map [s3]", "-map 1").replace(" -max_interleave_delta 0", "").split(" ")
    assert len(plain) == len(ours) - 2
    made = []
    for command in (plain, ours):
        pixels = np.arange(frames * 32 * 32 * 3, dtype=np.int64) // 96 % 251
        subprocess.run([*command, "-y"], input=pixels.astype(np.uint8).tobytes(), check=True)
        made.append((tmp_path / "o.mp4").read_bytes())
    assert made[0] == made[1]


def test_an_old_matroska_is_given_opus_later() -> None:
    assert has(arguments(OLD, container="webm"), "-itsoffset", "0.0065")
    for tool, form in ((TOOL, {"container": "webm"}), (OLD, {"container": "mkv"}), (OLD, {"audio_codec": "opus"})):
        assert "-itsoffset" not in arguments(tool, **form)


def test_what_there_is_no_encoder_for() -> None:
    bare = FFmpeg(Path("/bin/ffmpeg"), "7.1", frozenset({"libopenh264"}), "a test")
    shape = ClipShape(64, 64, 5)
    for encode in (EncodeSettings(video_codec="av1"), EncodeSettings()):
        with pytest.raises(BackendUnavailable, match=r"ffmpeg 7\.1 has no encoder of (av1|aac)"):
            mux_command(bare, shape, Path("s.wav"), Path("o"), encode)
    with pytest.raises(InvalidRequest, match=r"format\.crf"):
        mux_command(bare, shape, None, Path("o"), EncodeSettings(crf=20))

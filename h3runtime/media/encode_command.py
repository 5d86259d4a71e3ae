"""The command line that makes a file of frames on stdin and a WAV: ffmpeg's arguments for every legal `EncodeSettings`.

Starts nothing: `mux` does, `formats` has judged the settings. Pictures and sound arrive at the delivered rates already.

    pictures   rgb24 -> the codec's pixels, BT.709, limited range (`colour`), tagged in stream and container
    quality    what `crf` says; else H.264's encoder decides itself and the others get `QUALITY`, without which that of
               VP9 and AV1 is a small fixed bit rate
    repeatable Matroska's random ids are left out, so that the same clip is the same file in every container
    order      the sound goes through the pictures' graph, which takes both by time: by itself it would wait for the
               first packet of the video encoder, which looks 40 frames ahead. The bytes are the same
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ffmpeg

from h3runtime.core import EncodeSettings
from h3runtime.errors import BackendUnavailable, Offence, invalid
from h3runtime.media.colour import TAGS, tagged, to_yuv
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.formats import CONTAINERS, NO_CRF, suffix_of
from h3runtime.media.retiming import rate_of

QUALITY: Mapping[str, int] = {"libx265": 23, "libvpx-vp9": 34, "libsvtav1": 35, "libaom-av1": 35}
"""crf at which the PSNR of a zoom into the Mandelbrot set is within 1 dB of what libx264's own 23 leaves. x265's own 28
is 5 dB below."""
ENCODER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # x265 writes a page about itself to stderr whatever ffmpeg is told.
    "libx265": {"x265-params": "log-level=error"},
    "libvpx-vp9": {"b:v": 0, "deadline": "good", "cpu-used": 4, "row-mt": 1},
    "libsvtav1": {"preset": 8},
    "libaom-av1": {"b:v": 0, "cpu-used": 6, "row-mt": 1},
}
"""Constant quality where a bit rate would be the default, and presets at which 39 frames of 320x192 take about a second
of one core."""
LEAST_CRF: Mapping[str, int] = {"libsvtav1": 1}
"""Where 0 means that none was given."""
MATROSKA = {"fflags": "+bitexact"}
"""No random ids."""
MUXER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "mp4": {"movflags": "use_metadata_tags+faststart"},
    "mov": {"movflags": "use_metadata_tags+faststart"},
    "matroska": MATROSKA,
    "webm": MATROSKA,
}
GATE = b"\0"
"""A byte ahead of the frames that ffmpeg skips when it opens stdin, so that it opens nothing else before it comes. It
takes 65 ms to start, for the 200 libraries of a distribution's, which need not wait for the sound."""
OPUS_LEAD_IN = 312 / 48_000
"""Seconds that libopus puts before the first sample; the file says so, and players leave it out."""
PATIENT_MATROSKA = 6
"""ffmpeg's first version whose Matroska leaves room for a lead-in by itself. An older one moves the picture back by it
instead, so it is given the sound as much later. (Beside AAC it moves both, by 32 ms, and they stay together.)"""
SOUND_OPTIONS: Mapping[str, Mapping[str, Any]] = {"flac": {"sample_fmt": "s32", "bits_per_raw_sample:a": 24}}
"""24 bits, the most that all players read; ffmpeg since 6 makes 32 of s32 where experimental things are allowed."""
AT_ONCE: Mapping[str, Mapping[str, Any]] = {"aac": {"n": 2**31 - 1, "p": 0}}
"""asetnsamples: the whole sound is encoded when the first frame comes, while others are being decoded, not behind the
last one: 60 ms for 1.6 s of AAC. FLAC takes no frame that large, and PCM would be one packet."""


@dataclass(frozen=True, slots=True)
class ClipShape:
    """What is promised before the first frame: frames [F, H, W, 3] of `width` x `height`, both even, at 24 fps."""

    width: int
    height: int
    frames: int


def mux_command(
    tool: FFmpeg,
    shape: ClipShape,
    wav: Path | None,
    clip: Path,
    encode: EncodeSettings,
    loglevel: str = "error",
    *,
    gated: bool = False,
) -> list[str]:
    """The whole command line: rgb24 frames at the delivered rate on stdin and a WAV in, one file out.

    gated: the WAV isn't there before `GATE` has been written to stdin, ahead of the frames.

    MP4 of H.264 and AAC at 24 fps with no more options than ComfyUI has (conditioning contract §6) is the default.
    `InvalidRequest` for a crf that the encoder at hand doesn't know, `BackendUnavailable` for a codec without encoder.
    """
    size, rate = (shape.width, shape.height), rate_of(encode.fps)
    gate = {"skip_initial_bytes": len(GATE)} if gated else {}
    pixels: dict[str, Any] = {"format": "rawvideo", "pix_fmt": "rgb24", "video_size": size, "framerate": str(rate)}
    raw = ffmpeg.input("pipe:0", protocol_whitelist="pipe", **pixels, **gate)
    streams = [tagged(to_yuv(raw, encode.pixel_format))]
    options = _video_options(tool, encode)
    if wav is not None:
        heard = ffmpeg.input(str(wav), format="wav", protocol_whitelist="file", **_sound_start(tool, encode))
        streams.append(_in_time(heard, encode))
        options |= _audio_options(tool, encode)
    options |= _muxer_options(encode, has_sound=wav is not None)
    arguments = ffmpeg.get_args(ffmpeg.output(*streams, str(clip), **options))
    return [str(tool.path), "-hide_banner", "-nostdin", "-nostats", "-xerror", "-loglevel", loglevel, *arguments]


def video_encoder_of(tool: FFmpeg, encode: EncodeSettings) -> str:
    """`BackendUnavailable` if there is none of these pixels."""
    found = tool.video_encoder(encode.video_codec, encode.pixel_format)
    if found is None:
        raise BackendUnavailable(f"ffmpeg {tool.version} has no encoder of {encode.video_codec} {encode.pixel_format}")
    return found


def temporary_name(encode: EncodeSettings) -> str:
    """Of the unfinished file: the suffix tells no muxer anything, but a person who finds it."""
    return f"clip{suffix_of(encode.container)}"


def _video_options(tool: FFmpeg, encode: EncodeSettings) -> dict[str, Any]:
    encoder = video_encoder_of(tool, encode)
    options: dict[str, Any] = {"c:v": encoder, "pix_fmt": encode.pixel_format} | TAGS
    options |= ENCODER_OPTIONS.get(encoder, {})
    crf = QUALITY.get(encoder) if encode.crf is None else max(encode.crf, LEAST_CRF.get(encoder, 0))
    if encode.crf is not None and encoder in NO_CRF:
        raise invalid([Offence("format.crf", f"{encoder} has no crf", "absent")])
    return options if crf is None else options | {"crf": crf}


def _audio_options(tool: FFmpeg, encode: EncodeSettings) -> dict[str, Any]:
    encoder = tool.audio_encoder(encode.audio_codec)
    if encoder is None:
        raise BackendUnavailable(f"ffmpeg {tool.version} has no encoder of {encode.audio_codec}")
    options: dict[str, Any] = {"c:a": encoder, "ar": encode.sample_rate}
    options |= SOUND_OPTIONS.get(encode.audio_codec, {})
    return options if encode.audio_bitrate is None else options | {"b:a": encode.audio_bitrate}


def _in_time(heard: Any, encode: EncodeSettings) -> Any:
    """Append what brings the sound into the graph, samples unchanged."""
    at_once = AT_ONCE.get(encode.audio_codec)
    return heard.filter("anull") if at_once is None else heard.filter("asetnsamples", **at_once)


def _sound_start(tool: FFmpeg, encode: EncodeSettings) -> dict[str, Any]:
    in_matroska = MUXER_OPTIONS[CONTAINERS[encode.container].muxer] is MATROSKA
    is_old = tool.major is not None and tool.major < PATIENT_MATROSKA
    return {"itsoffset": OPUS_LEAD_IN} if in_matroska and is_old and encode.audio_codec == "opus" else {}


def _muxer_options(encode: EncodeSettings, *, has_sound: bool) -> dict[str, Any]:
    muxer = CONTAINERS[encode.container].muxer
    options: dict[str, Any] = {"format": muxer, **MUXER_OPTIONS[muxer]}
    if encode.audio_codec in AT_ONCE and has_sound:
        # Without a limit, for the muxer still puts sound and pictures in turns into the file, the former held so long.
        options["max_interleave_delta"] = 0
    if encode.video_codec == "hevc" and encode.container in ("mp4", "mov"):
        # QuickTime and Safari play HEVC under this name only; ffmpeg's own choice is hev1.
        options["tag:v"] = "hvc1"
    if encode.audio_codec == "flac" and encode.container == "mp4" and has_sound:
        # ffmpeg before 7 calls FLAC in MP4 experimental; the mapping is published since 2018.
        options["strict"] = "experimental"
    return options

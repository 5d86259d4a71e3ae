"""What a delivered file may be: containers, what each can hold, and what the ffmpeg at hand can make of it.

Pure tables and rules, no process is started. The request's `format` object and the command line's flags are judged here
together (service-contract, `format`); `encode_command` makes arguments of what `settle` returns.

    container   video                  sound                  why not more
    mp4         h264 hevc vp9 av1      aac opus flac          PCM in MP4 (ISO 23003-5) is played by next to nothing
    mov         h264 hevc              aac pcm_s16le          QuickTime has no codes for the others; ffmpeg refuses them
    mkv         h264 hevc vp9 av1      all four
    webm        vp9 av1                opus                   all that WebM allows

Which pixels go with a codec is its encoder's matter: libsvtav1 has no 4:4:4 (libaom-av1 has), libopenh264 has 8-bit
4:2:0 only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from h3runtime.core import FPS, AudioCodec, Container, EncodeSettings, PixelFormat, VideoCodec
from h3runtime.errors import Offence
from h3runtime.media.ffmpeg import FFmpeg

SampleRate = Literal[32_000, 44_100, 48_000]
Loudness = Literal["comfyui", "none"]

LOSSLESS: frozenset[AudioCodec] = frozenset({"flac", "pcm_s16le"})
"""Codecs whose bit rate is what the sound takes."""
OPUS_RATE: SampleRate = 48_000
"""Opus has one clock; of the rates a request may name it is the only one its encoder takes (RFC 6716)."""
FPS_RANGE = (1.0, 120.0)
CRF_RANGE = (0, 51)
NO_CRF = frozenset({"libopenh264"})
"""Encoders without constant quality."""


@dataclass(frozen=True, slots=True)
class Holds:
    """One container: name of ffmpeg's muxer, of files and on the wire; codecs it can hold, its default first."""

    muxer: str
    suffix: str
    media_type: str
    video: tuple[VideoCodec, ...]
    audio: tuple[AudioCodec, ...]


CONTAINERS: Mapping[Container, Holds] = {
    "mp4": Holds("mp4", ".mp4", "video/mp4", ("h264", "hevc", "vp9", "av1"), ("aac", "opus", "flac")),
    "mov": Holds("mov", ".mov", "video/quicktime", ("h264", "hevc"), ("aac", "pcm_s16le")),
    "mkv": Holds(
        "matroska", ".mkv", "video/x-matroska", ("h264", "hevc", "vp9", "av1"), ("aac", "opus", "flac", "pcm_s16le")
    ),
    "webm": Holds("webm", ".webm", "video/webm", ("vp9", "av1"), ("opus",)),
}


@dataclass(frozen=True, slots=True)
class FormatWish:
    """The fields of `format` that were given and are legal by themselves; None where one wasn't."""

    container: Container | None = None
    video_codec: VideoCodec | None = None
    crf: int | None = None
    pixel_format: PixelFormat | None = None
    audio_codec: AudioCodec | None = None
    audio_bitrate: int | None = None
    sample_rate: SampleRate | None = None
    fps: float | None = None
    loudness: Loudness | None = None

    @classmethod
    def of(cls, raw: object) -> FormatWish:
        """Of a raw `format` object, whatever it is: what isn't legal by itself is told elsewhere, and left out here."""
        given = raw if isinstance(raw, Mapping) else {}
        taken = {name: _taken(name, given[name]) for name in cls.__slots__ if name in given}
        return cls(**taken)


def suffix_of(container: Container) -> str:
    return CONTAINERS[container].suffix


def media_type_of(container: Container) -> str:
    return CONTAINERS[container].media_type


def container_of(suffix: str) -> Container | None:
    """`.webm` -> `webm`; None for a suffix that no container has."""
    return next((name for name, holds in CONTAINERS.items() if holds.suffix == suffix), None)


def settle(wish: FormatWish) -> EncodeSettings:
    """Every field resolved, defaults by container (service-contract, `format`)."""
    container = wish.container or "mp4"
    audio = wish.audio_codec or CONTAINERS[container].audio[0]
    return EncodeSettings(
        container=container,
        video_codec=wish.video_codec or CONTAINERS[container].video[0],
        crf=wish.crf,
        pixel_format=wish.pixel_format or "yuv420p",
        audio_codec=audio,
        audio_bitrate=wish.audio_bitrate,
        sample_rate=wish.sample_rate or (OPUS_RATE if audio == "opus" else 32_000),
        fps=FPS if wish.fps is None else wish.fps,
        loudness=wish.loudness or "comfyui",
    )


def codecs_of(tool: FFmpeg) -> dict[str, list[str]]:
    """What this ffmpeg can make, by the names of `format`'s fields; what `/ready` lists."""
    video = [codec for codec in get_args(VideoCodec) if tool.video_encoder(codec)]
    audio = [codec for codec in get_args(AudioCodec) if tool.audio_encoder(codec)]
    pixels = [form for form in get_args(PixelFormat) if any(tool.video_encoder(codec, form) for codec in video)]
    held = [name for name, holds in CONTAINERS.items() if {*holds.video} & {*video} and {*holds.audio} & {*audio}]
    return {"container": held, "video_codec": video, "pixel_format": pixels, "audio_codec": audio}


def judge_format(raw: object, tool: FFmpeg) -> list[Offence]:
    """What is wrong between the fields of a raw `format`, and what this ffmpeg can't make. Fields that are wrong by
    themselves are taken as not given."""
    wish = FormatWish.of(raw)
    encode = settle(wish)
    return [
        *_judge_video(wish, encode, tool),
        *_judge_pixels(wish, encode, tool),
        *_judge_audio(wish, encode, tool),
        *_judge_rate(wish, encode),
    ]


def _judge_video(wish: FormatWish, encode: EncodeSettings, tool: FFmpeg) -> list[Offence]:
    codec, container = encode.video_codec, encode.container
    held = CONTAINERS[container].video
    if codec not in held:
        return _clash(wish, ("video_codec", codec, held), ("container", container, _holding("video", codec)))
    if tool.video_encoder(codec) is None:
        legal = [name for name in held if tool.video_encoder(name)]
        return [_lacking("video_codec", codec, legal)]
    return []


def _judge_pixels(wish: FormatWish, encode: EncodeSettings, tool: FFmpeg) -> list[Offence]:
    codec, pixels = encode.video_codec, encode.pixel_format
    if tool.video_encoder(codec) is None:
        return []
    encoder = tool.video_encoder(codec, pixels)
    if encoder is None:
        legal = [form for form in get_args(PixelFormat) if tool.video_encoder(codec, form)]
        others = [name for name in CONTAINERS[encode.container].video if tool.video_encoder(name, pixels)]
        return _clash(wish, ("pixel_format", pixels, legal), ("video_codec", codec, others))
    if encode.crf is not None and encoder in NO_CRF:
        return [Offence("format.crf", f"{encoder}, this server's encoder of {codec}, has no crf", "absent")]
    return []


def _judge_audio(wish: FormatWish, encode: EncodeSettings, tool: FFmpeg) -> list[Offence]:
    codec, container = encode.audio_codec, encode.container
    held = CONTAINERS[container].audio
    if codec not in held:
        return _clash(wish, ("audio_codec", codec, held), ("container", container, _holding("audio", codec)))
    if tool.audio_encoder(codec) is None:
        legal = [name for name in held if tool.audio_encoder(name)]
        return [_lacking("audio_codec", codec, legal)]
    return []


def _judge_rate(wish: FormatWish, encode: EncodeSettings) -> list[Offence]:
    codec, offences = encode.audio_codec, []
    if codec == "opus" and encode.sample_rate != OPUS_RATE:
        others = [name for name in CONTAINERS[encode.container].audio if name != "opus"]
        offences += _clash(wish, ("sample_rate", encode.sample_rate, [OPUS_RATE]), ("audio_codec", codec, others))
    if codec in LOSSLESS and encode.audio_bitrate is not None:
        lossy = [name for name in CONTAINERS[encode.container].audio if name not in LOSSLESS]
        offences += _clash(wish, ("audio_bitrate", encode.audio_bitrate, ["absent"]), ("audio_codec", codec, lossy))
    return offences


Side = tuple[str, object, Iterable[object]]
"""A field, its value, and what it could be instead beside the other one."""


def _clash(wish: FormatWish, *sides: Side) -> list[Offence]:
    """One offence for each of the two fields that was given: a default is in nobody's request."""
    (one, this, _), (other, that, _) = sides
    told = f"{one} {this} does not go with {other} {that}"
    given = [side for side in sides if getattr(wish, side[0]) is not None]
    return [Offence(f"format.{name}", told, _listed(legal)) for name, _, legal in given or sides[:1]]


def _lacking(field: str, codec: str, legal: Iterable[object]) -> Offence:
    return Offence(f"format.{field}", f"this server's ffmpeg has no encoder of {codec}", _listed(legal))


def _holding(kind: Literal["video", "audio"], codec: str) -> list[Container]:
    return [name for name, holds in CONTAINERS.items() if codec in getattr(holds, kind)]


def _listed(legal: Iterable[object]) -> str:
    return ", ".join(str(item) for item in legal) or "none"


_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "container": get_args(Container),
    "video_codec": get_args(VideoCodec),
    "pixel_format": get_args(PixelFormat),
    "audio_codec": get_args(AudioCodec),
    "sample_rate": get_args(SampleRate),
    "loudness": get_args(Loudness),
}
_RANGES: Mapping[str, tuple[float, float]] = {"fps": FPS_RANGE, "crf": CRF_RANGE, "audio_bitrate": (1, math.inf)}


def _taken(name: str, value: object) -> Any:
    """A field's value where it is legal, as the legal one (48000 of 48000.0), else None."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if name in _CHOICES:
        return next((choice for choice in _CHOICES[name] if choice == value), None)
    if name == "audio_bitrate" and isinstance(value, str):
        return int(value[:-1]) * 1000 if re.fullmatch(r"[0-9]{1,6}k", value) else None
    if isinstance(value, str) or (name != "fps" and isinstance(value, float)):
        return None
    low, high = _RANGES[name]
    return value if low <= value <= high else None

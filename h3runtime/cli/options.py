"""Flags that several commands share: how the clip is encoded, and what is shown while it is made."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from h3runtime.api.request import FormatBody, read_body
from h3runtime.core import Container, EncodeSettings
from h3runtime.errors import InvalidRequest, Offence, OutputExists, invalid
from h3runtime.media.ffmpeg import find_ffmpeg
from h3runtime.media.formats import CONTAINERS, container_of, judge_format, suffix_of

LOGLEVELS = ("quiet", "panic", "fatal", "error", "warning", "info", "verbose", "debug")


ENCODER = (
    "container",
    "video_codec",
    "crf",
    "pixel_format",
    "audio_codec",
    "audio_bitrate",
    "sample_rate",
    "fps",
    "loudness",
)
"""Fields of a request's `format`, which are flags of the same names."""


def add_encoder_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--container",
        metavar="|".join(CONTAINERS),
        help="Kind of file. Default: what the output's suffix says, or mp4.",
    )
    parser.add_argument("--video-codec", metavar="h264|hevc|vp9|av1", help="Default: h264, in webm vp9.")
    parser.add_argument(
        "--pixel-format", metavar="yuv420p|yuv444p|yuv420p10le", help="Default: yuv420p, which every player knows."
    )
    parser.add_argument("--audio-codec", metavar="aac|opus|flac|pcm_s16le", help="Default: aac, in webm opus.")
    parser.add_argument(
        "--sample-rate", type=_number, metavar="HZ", help="32000, 44100 or 48000. Default: 32000, of opus 48000."
    )
    parser.add_argument(
        "--fps", type=float, metavar="1..120", help="Pictures a second; the duration stays. Default: 24."
    )
    parser.add_argument(
        "--loudness",
        choices=("comfyui", "none"),
        help="comfyui: divide the sound by max(1, 5*std), as ComfyUI does. none: as decoded. Default: comfyui.",
    )
    parser.add_argument("--crf", type=int, metavar="0..51", help="Quality of the picture; less is better and larger.")
    parser.add_argument("--audio-bitrate", type=_number, metavar="BITS", help="Bits a second of the sound, or 128k.")
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing output.")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="Nothing on stdout and no progress bar.")
    parser.add_argument("--progress", action="store_true", help="Print every step's seconds on stderr.")
    parser.add_argument(
        "--ffmpeg-loglevel", choices=LOGLEVELS, default="error", help="What ffmpeg may say on stderr. Default: error."
    )


def format_of(arguments: argparse.Namespace, output: Path | None) -> dict[str, Any]:
    """The raw `format` that the flags mean; without `--container` the output's suffix says which."""
    given = {name: getattr(arguments, name) for name in ENCODER}
    raw = {name: value for name, value in given.items() if value is not None}
    implied = None if output is None else container_of(output.suffix)
    return raw if implied in (None, "mp4") else {"container": implied} | raw


def encode_settings(raw: dict[str, Any], offences: list[Offence]) -> EncodeSettings:
    """By the rules of a request's `format`; what is wrong is added to `offences`, under the names of the flags."""
    read = read_body({"prompt": "-", "format": raw})
    found = [*read.offences, *judge_with_ffmpeg(raw)]
    offences += [Offence(o.field.removeprefix("format."), o.message, o.legal) for o in found]
    return (read.body.format or FormatBody()).settled()


def judge_with_ffmpeg(raw: object) -> list[Offence]:
    """What this machine's ffmpeg has to say of a `format`. None is started for the default: the engine looks anyway."""
    return judge_format(raw, find_ffmpeg()) if raw else []


def output_path(path: Path, container: Container, *, overwrite: bool) -> Path:
    """Absolute; its folder exists, its suffix is the container's, nothing is in the way unless it may be replaced."""
    whole, suffix = path.absolute(), suffix_of(container)
    if path.suffix != suffix:
        legal = " or ".join(holds.suffix for holds in CONTAINERS.values())
        legal = legal if container_of(path.suffix) is None else f"{suffix}, or --container {container_of(path.suffix)}"
        raise invalid([Offence("output", f"{path.name} does not end in {suffix}", f"a name ending in {legal}")])
    if not whole.parent.is_dir():
        raise invalid([Offence("output", f"{path.parent} is not a folder", "a folder that exists")])
    if not os.access(whole.parent, os.W_OK | os.X_OK):
        raise unwritable(path.parent)
    refuse_taken(path, overwrite=overwrite)
    return whole


def refuse_taken(path: Path, *, overwrite: bool) -> None:
    """A file in the way may be replaced if that was asked for; a folder never."""
    if path.exists() and not (overwrite and path.is_file()):
        legal = "another name, or --overwrite"
        raise OutputExists(f"output: {path} exists", [Offence("output", "exists", legal)])


def unwritable(folder: Path) -> InvalidRequest:
    return invalid([Offence("output", f"{folder} can't be written to", "a folder that can be written to")])


def _number(text: str) -> int | str:
    """Digits as a number; what else is text is judged with the request."""
    return int(text) if text.isdecimal() else text

"""Flags that several commands share: how the clip is encoded, and what is shown while it is made."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from h3runtime.api.judging.spec import encode_of
from h3runtime.api.request import FormatBody, read_body
from h3runtime.core import EncodeSettings
from h3runtime.errors import InvalidRequest, Offence, OutputExists, invalid

LOGLEVELS = ("quiet", "panic", "fatal", "error", "warning", "info", "verbose", "debug")


def add_encoder_flags(parser: argparse.ArgumentParser) -> None:
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


def encode_settings(arguments: argparse.Namespace, offences: list[Offence]) -> EncodeSettings:
    """By the rules of a request's `format`; what is wrong is added to `offences`, under the names of the flags."""
    given = {name: getattr(arguments, name) for name in ("loudness", "crf", "audio_bitrate")}
    raw: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    read = read_body({"prompt": "-", "format": raw})
    offences += [Offence(o.field.removeprefix("format."), o.message, o.legal) for o in read.offences]
    return encode_of(read.body.format or FormatBody())


def output_path(path: Path, *, overwrite: bool) -> Path:
    """Absolute; its folder exists, its suffix is .mp4, and nothing is in the way unless it may be replaced."""
    whole = path.absolute()
    if path.suffix != ".mp4":
        raise invalid([Offence("output", f"{path.name} does not end in .mp4", "a name ending in .mp4")])
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

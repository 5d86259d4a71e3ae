"""What an entry of a chain says of its place in it: how long it is, and how it continues the one before.

These fields mean something else in a chain than alone: `seconds` may be any length, since cuts need no grid, and
`continue_from` without a medium is about the entry before. They are judged here and taken out; the rest of the entry is
an ordinary request. Fed by `chain_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from h3runtime.api.request import CONTINUED_FRAMES, MEDIA, NULLABLE
from h3runtime.api.rules.length import DEFAULT_FRAMES
from h3runtime.core import FPS
from h3runtime.errors import Offence
from h3runtime.packing.cuts import exact
from h3runtime.packing.geometry import is_legal_frames

WHOLE = {
    "output": "--output",
    "overwrite": "--overwrite",
    "format": "--container, --video-codec, --crf and the other flags of encoding",
    "save_latents": "none: no clip of a chain is kept by itself",
}
"""Fields that are about the file that is made, of which a chain has one -> what is meant for it."""
LENGTHS = ("seconds", "frames")
LONGEST = 86_400
"""Seconds that an entry may ask for: more than any machine makes at once, and few enough digits to be told."""
LINK_LEGAL = '{"frames": 17n+5, "audio": true or false}, false for a hard cut, or a medium'


@dataclass(frozen=True, slots=True)
class Wish:
    """seconds: the length of what the entry gives, and the field that says so. overlap: frames of the entries before
    that it begins with, 0 for a hard cut; audio: their sound too. request: the rest, as `POST /generate` takes it."""

    seconds: Fraction
    field: str
    overlap: int
    audio: bool
    request: Mapping[str, Any]


def wish_of(entry: Mapping[str, Any], *, is_first: bool) -> tuple[Wish, list[Offence]]:
    """What is wrong is told under the names of the entry's own fields, and stands for its default meanwhile."""
    rest = dict(entry)
    offences = [
        Offence(name, "null is not a value here", "a value, or leave the field out")
        for name in (*LENGTHS, *WHOLE)
        if name in rest and rest[name] is None and name not in NULLABLE
    ]
    offences += [
        Offence(name, "is not of one clip of a chain", f"left out; for the whole: {meant}")
        for name, meant in WHOLE.items()
        if rest.pop(name, None) is not None
    ]
    if rest.get("n") not in (None, 1):
        offences.append(Offence("n", "is more than one clip, and a chain is made of one after another", "1"))
        rest.pop("n")
    field = "seconds" if rest.get("frames") is None else "frames"
    seconds = _seconds(rest.pop("seconds", None), rest.pop("frames", None), offences)
    link = rest.get("continue_from", {})
    if is_medium(link):
        return Wish(seconds, field, 0, False, rest), offences
    rest.pop("continue_from", None)
    overlap, audio = _overlap(link, offences)
    return Wish(seconds, field, 0 if is_first else overlap, audio, rest), offences


def is_medium(link: Any) -> bool:
    """Whether a `continue_from` is an ordinary one, about a clip from elsewhere."""
    return isinstance(link, dict) and bool(link.keys() & {"job", *MEDIA})


def _seconds(seconds: Any, frames: Any, offences: list[Offence]) -> Fraction:
    """From `seconds` as written, or as many as `frames` take."""
    default = Fraction(DEFAULT_FRAMES, FPS)
    if seconds is not None and frames is not None:
        offences.append(Offence("frames", "says again how long the clip is", "seconds or frames"))
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST:
            legal = f"a number above 0, at most {LONGEST}"
            offences.append(Offence("seconds", f"{seconds!r:.60} is no length", legal))
            return default
        return exact(seconds)
    if frames is not None:
        if isinstance(frames, bool) or not isinstance(frames, int) or not 0 < frames <= LONGEST * FPS:
            legal = f"a whole number, 1..{LONGEST * FPS}; or seconds"
            offences.append(Offence("frames", f"{frames!r:.60} is no length", legal))
            return default
        return Fraction(frames, FPS)
    return default


def _overlap(link: Any, offences: list[Offence]) -> tuple[int, bool]:
    """Frames of overlap and whether their sound counts."""
    if link is None or link is False:
        return 0, False
    if link is True:
        link = {}
    if not isinstance(link, dict):
        offences.append(Offence("continue_from", f"{link!r:.60} is no link", LINK_LEGAL))
        return CONTINUED_FRAMES, True
    offences += [
        Offence(f"continue_from.{name}", "is not a field here", LINK_LEGAL)
        for name in link.keys() - {"frames", "audio"}
    ]
    frames, audio = link.get("frames", CONTINUED_FRAMES), link.get("audio", True)
    if isinstance(frames, bool) or not isinstance(frames, int) or not is_legal_frames(frames):
        offences.append(Offence("continue_from.frames", f"{frames!r:.60} is no legal length", "17n+5 from 5"))
        frames = CONTINUED_FRAMES
    if not isinstance(audio, bool):
        offences.append(Offence("continue_from.audio", f"{audio!r:.60} is neither true nor false", "true, false"))
        audio = True
    return frames, audio

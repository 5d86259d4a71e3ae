"""One worked request for each task, as JSON and as a form. All of them are taken as they stand, uploads added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PICTURE = {
    "data": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAcAAAAEAQMAAAB4CLc+AAAAA1BMVEXIeDzwT3VbAAAAC0lEQVR42mNggAAA"
    "AAgAAST8BHIAAAAASUVORK5CYII="
}
"""A picture of 7 by 4 equal pixels, as small as PNG makes it."""
SMALL = {"width": 448, "height": 256, "seconds": 2}
"""So that a try is quick; nobody needs to give it."""


def _json(task: str, summary: str, **fields: Any) -> dict[str, Any]:
    return {"summary": summary, "value": {"task": task, **fields, **SMALL}}


def _form(task: str, summary: str, uploads: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    request = {"task": task, **fields, **SMALL}
    return {"summary": summary, "value": {"request": request, **dict.fromkeys(uploads, "(file)")}}


JSON_EXAMPLES: Mapping[str, dict[str, Any]] = {
    "t2va": _json("t2va", "From a prompt alone", prompt="A cat on a windowsill, rain outside.", seed="42"),
    "i2va": _json(
        "i2va",
        "From its first frame, with another picture at frame 34",
        prompt="The cat looks up and jumps.",
        first_frame=PICTURE,
        keyframes=[{"image": PICTURE, "frame": 34}],
    ),
    "l2va": _json("l2va", "Up to its last frame", prompt="The cat lands on the floor.", last_frame=PICTURE),
    "fl2va": _json(
        "fl2va", "From one picture to another", prompt="It gets dark.", first_frame=PICTURE, last_frame=PICTURE
    ),
    "ref2va": _json(
        "ref2va",
        "After two pictures",
        prompt="The cat of <Picture 1> sleeps in the room of <Picture 2>.",
        references=[{"type": "image", "source": PICTURE}, {"type": "image", "source": PICTURE, "size": "max"}],
    ),
}
FORM_EXAMPLES: Mapping[str, dict[str, Any]] = {
    "t2va": _form("t2va", "From a prompt alone", prompt="A cat on a windowsill, rain outside."),
    "i2va": _form(
        "i2va",
        "Another clip goes on, its sound too",
        ("clip",),
        prompt="The cat goes on to the kitchen.",
        continue_from={"upload": "clip", "frames": 22},
    ),
    "l2va": _form("l2va", "Up to its last frame", ("end",), prompt="It lands.", last_frame={"upload": "end"}),
    "fl2va": _form(
        "fl2va",
        "From one picture to another",
        ("start", "end"),
        prompt="It gets dark.",
        first_frame={"upload": "start"},
        last_frame={"upload": "end"},
    ),
    "ref2va": _form(
        "ref2va",
        "After a picture, a clip without its sound, and a voice",
        ("cat", "walk", "voice"),
        prompt="The cat of <Picture 1> walks as in <Video 1> and speaks with the voice of <Audio 1>.",
        references=[
            {"type": "image", "source": {"upload": "cat"}},
            {"type": "video", "source": {"upload": "walk"}, "audio": "off", "start": 1.5},
            {"type": "audio", "source": {"upload": "voice"}},
        ],
    ),
}

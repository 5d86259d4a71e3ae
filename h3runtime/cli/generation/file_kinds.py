"""Whether a file is a picture, a clip or a sound, as its contents say: for flags that take any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from av.stream import Disposition

from h3runtime.errors import BadMedia
from h3runtime.media.intake.moving_picture import is_moving
from h3runtime.media.probe import opened


def kind_of(path: Path) -> Literal["image", "video", "audio"] | None:
    """None for a file that is none of them, or isn't there. Headers are read; the rest is judged with the request."""
    try:
        if is_moving(path, "file"):
            return "video"
    except BadMedia:
        # It says so of a picture that stands still.
        return "image"
    try:
        with opened(path, "file") as container:
            # The cover of a song is a video stream of one picture.
            if any(not stream.disposition & Disposition.attached_pic for stream in container.streams.video):
                return "video"
            return "audio" if container.streams.audio else None
    except BadMedia:
        return None

"""Whether a file is a picture, a clip or a sound, as its contents say: for flags that take any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from h3runtime.errors import BadMedia
from h3runtime.media.intake.containers import opened_medium, picture_stream, sound_stream
from h3runtime.media.intake.moving_picture import picture_kind


def kind_of(path: Path) -> Literal["image", "video", "audio"] | None:
    """None for a file that is none of them, or isn't there. Headers are read; the rest is judged with the request."""
    if (kind := picture_kind(path)) is not None:
        return "video" if kind == "moving" else "image"
    try:
        with opened_medium(path, "file") as container:
            if picture_stream(container) is not None:
                return "video"
            return "audio" if sound_stream(container) is not None else None
    except BadMedia:
        return None

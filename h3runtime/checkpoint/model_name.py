"""Metadata of files whose weights are a trained model's, but not H3's: which model, which masters they came from, and
what it was trained on.

Written by `embedded`; read by `file` (what `inspect` and `/ready` tell) and by `engine`, which completes a set from the
embedded one only with files of the same masters.
"""

from __future__ import annotations

import re

MODEL_KEY = "h3runtime_model"
"""Metadata entry: the model's name. A file of H3 itself has none."""
MASTERS_KEY = "h3runtime_masters"
"""Metadata entry: 16 hex digits over the masters. Encoder, VAEs and transformer of others were trained apart."""
FRAMES_KEY = "h3runtime_trained_frames"
"""Metadata entry of a transformer: `22..124`, the shortest and the longest clip that it was trained on."""
NANO = "h3-nano"


def told_frames(frames: tuple[int, int]) -> str:
    return "..".join(map(str, frames))


def read_frames(told: str) -> tuple[int, int] | None:
    """What `told_frames` wrote; None for anything else, as metadata is anybody's."""
    found = re.fullmatch(r"(\d{1,6})\.\.(\d{1,6})", told, re.ASCII)
    return None if found is None else (int(found[1]), int(found[2]))

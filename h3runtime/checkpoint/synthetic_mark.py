"""The mark of made-up checkpoints whose layout leaves no room for one: a file `SYNTHETIC` beside them.

Files of the published sizes have the published header to the byte, so nothing in them can say that their values are
random. `SYNTHETIC` lists each by the SHA-256 of its first MiB (the header and the first values), which survives
renaming and copying and fits no trained file that takes its name later. Written by `synthesis`; asked by `file`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

NAME = "SYNTHETIC"
PREAMBLE = """\
# The checkpoints in this folder were made up by h3runtime: random values, no trained weights; so is the tokenizer.
# SHA-256 of the first MiB of each file, and its name:
"""
FINGERPRINT_BYTES = 1 << 20
MAX_BYTES = 1 << 20
"""A larger `SYNTHETIC` isn't ours."""


def mark(folder: Path, paths: Iterable[Path]) -> str:
    """Contents of `folder`'s `SYNTHETIC` file once these checkpoints are in it; what it lists already stays."""
    listed = {fingerprint(path): path.name for path in paths}
    kept = [line for line in _lines(folder) if line.split(" ", 1)[0] not in listed]
    return PREAMBLE + "".join(
        f"{line}\n" for line in [*kept, *(f"{digest}  {name}" for digest, name in listed.items())]
    )


def is_marked_synthetic(path: Path) -> bool:
    """Whether the `SYNTHETIC` file beside `path`, if there is one, lists it. Unreadable is no."""
    listed = {line.split(" ", 1)[0] for line in _lines(path.parent)}
    try:
        return bool(listed) and fingerprint(path) in listed
    except OSError:
        return False


def _lines(folder: Path) -> list[str]:
    try:
        with (folder / NAME).open(encoding="utf-8") as file:
            return [line for line in file.read(MAX_BYTES).splitlines() if line and not line.startswith("#")]
    except (OSError, ValueError):
        return []


def fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(FINGERPRINT_BYTES)).hexdigest()

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


def mark(paths: Iterable[Path]) -> str:
    """Contents of the `SYNTHETIC` file for these checkpoints of one folder."""
    return PREAMBLE + "".join(f"{fingerprint(path)}  {path.name}\n" for path in paths)


def is_marked_synthetic(path: Path) -> bool:
    """Whether the `SYNTHETIC` file beside `path`, if there is one, lists it. Unreadable is no."""
    try:
        with path.with_name(NAME).open("rb") as file:
            lines = file.read(MAX_BYTES).splitlines()
        listed = {line.split(b" ", 1)[0] for line in lines if not line.startswith(b"#")}
        return bool(listed) and fingerprint(path).encode() in listed
    except (OSError, ValueError):
        return False


def fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(FINGERPRINT_BYTES)).hexdigest()

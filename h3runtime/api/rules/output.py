"""The name of the file that a clip is written to."""

from __future__ import annotations

from pathlib import Path

from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import Container
from h3runtime.media.formats import CONTAINERS, suffix_of

MAX_NAME_BYTES = 200
"""Of 255 that file systems take: the rest is for the suffixes of what lies beside a clip."""


def judge_output(name: str | None, outputs: Path, verdict: Verdict, container: Container) -> None:
    """A bare name below the output root, that can't lead anywhere else and ends like its container. Where `format`
    can't be read, any container's suffix will do."""
    if name is None:
        return
    unknown = "format" in verdict.broken
    suffixes = tuple(holds.suffix for holds in CONTAINERS.values()) if unknown else (suffix_of(container),)
    legal = f"a bare file name ending in {' or '.join(suffixes)}, at most {MAX_NAME_BYTES} bytes"
    if (why := _why_no_name(name, suffixes)) is not None:
        verdict.refuse("output", f"{ascii(name)[:60]} {why}", legal)
    elif (outputs / name).is_symlink():
        verdict.refuse("output", f"{ascii(name)[:60]} is a symbolic link", legal)
    elif (outputs / name).exists() and not (outputs / name).is_file():
        verdict.refuse("output", f"{ascii(name)[:60]} is not a file", legal)


def _why_no_name(name: str, suffixes: tuple[str, ...]) -> str | None:
    if any(character in name for character in "/\\") or name in ("", ".", ".."):
        return "is a path, not a bare name"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "holds a control character"
    if name.startswith("."):
        return "begins with a dot"
    if not name.endswith(suffixes):
        return f"does not end in {' or '.join(suffixes)}"
    if len(name.encode()) > MAX_NAME_BYTES:
        return "is too long"
    return None

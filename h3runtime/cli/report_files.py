"""Where what `compare` and `inspect` found goes: names are judged before the work, files come whole."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from h3runtime.cli.report import json_text
from h3runtime.errors import Offence, OutputExists, invalid
from h3runtime.media.delivery import deliver, disk_error

PLOT_KINDS = (".png", ".svg")


def require_names(output: Path | None, plot: Path | None, inputs: Collection[Path], *, overwrite: bool) -> None:
    """InvalidRequest or OutputExists for a name that can't be written to."""
    named = [(field, path) for field, path in (("output", output), ("plot", plot)) if path is not None]
    if plot is not None and plot.suffix.lower() not in PLOT_KINDS:
        told = f"{plot.name} doesn't end in the name of a kind of picture that can be drawn"
        raise invalid([Offence("plot", told, " or ".join(PLOT_KINDS))])
    for field, path in named:
        require_free(field, path, overwrite=overwrite)
    taken = {path.resolve(): field for field, path in zip("ab", inputs, strict=True)}
    for field, path in named:
        if (other := taken.setdefault(path.resolve(), field)) != field:
            raise invalid([Offence(field, f"{path} is also {other}", "a name of its own")])


def write_report(path: Path, facts: Mapping[str, Any], *, overwrite: bool) -> None:
    write_whole(path, (json_text(facts, indent=1) + "\n").encode(), overwrite=overwrite)


def write_whole(path: Path, data: bytes, *, overwrite: bool) -> None:
    """OutputExists, JobDiskFull, EncoderFailed for another fault of the file system."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(data)
        deliver(unfinished, path, overwrite=overwrite)
    except OSError as error:
        raise disk_error(error, "report") from error
    finally:
        unfinished.unlink(missing_ok=True)


def require_free(field: str, path: Path, *, overwrite: bool) -> None:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise invalid([Offence(field, f"{folder} is not a folder", "a folder that exists")])
    if not os.access(folder, os.W_OK | os.X_OK):
        raise invalid([Offence(field, f"{folder} can't be written to", "a folder that can be written to")])
    if os.path.lexists(path) and not (overwrite and path.is_file()):
        raise OutputExists(f"{field}: {path} exists", [Offence(field, "exists", "another name, or --overwrite")])

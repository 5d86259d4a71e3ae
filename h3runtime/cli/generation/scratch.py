"""Where a command keeps what is unfinished: a hidden folder beside the output, gone when the command ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from h3runtime.cli.options import unwritable
from h3runtime.errors import Offence, invalid


@contextmanager
def scratch_folder(output: Path | None) -> Iterator[Path]:
    """On the file system of `output` (the current folder by default), so that a clip can be renamed into place."""
    parent = Path.cwd() if output is None else output.absolute().parent
    if not parent.is_dir():
        raise invalid([Offence("output", f"{parent} is not a folder", "a folder that exists")])
    folder = parent / f".h3runtime-{uuid4().hex}"
    try:
        # Inside, so that a signal right after it finds the way out.
        _make(folder)
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """All of it, or what can be removed."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        # Who insists doesn't ask for the rest of it.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise unwritable(folder.parent) from error

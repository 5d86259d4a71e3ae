"""Where a command keeps what is unfinished: a hidden folder beside the output, gone when the command ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from h3runtime.cli.options import unwritable
from h3runtime.errors import Offence, invalid


@contextmanager
def scratch_folder(output: Path | None) -> Iterator[Path]:
    """On the file system of `output` (the current folder by default), so that a clip can be renamed into place."""
    parent = Path.cwd() if output is None else output.absolute().parent
    if not parent.is_dir():
        raise invalid([Offence("output", f"{parent} is not a folder", "a folder that exists")])
    try:
        folder = Path(tempfile.mkdtemp(prefix=".h3runtime-", dir=parent))
    except OSError as error:
        raise unwritable(parent) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""Several files that appear in a folder together, or not at all: made in a folder inside it, then moved into place.

What is there already is refused unless it may be replaced. Whatever ends the block early (an error, Ctrl-C), nothing of
it stays, and folders that were made for it go too. Fed by `synthesis`; it knows no checkpoints.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from h3runtime.errors import DiskFull, Offence, OutputExists, invalid


@contextmanager
def staged(folder: Path, names: Sequence[str], headers: Mapping[str, int], *, overwrite: bool) -> Iterator[Path]:
    """A folder inside `folder` whose contents move there when the block ends well, and that is gone in any case.

    names: what will be written; OutputExists if one is there, unless it may be replaced or is a header alone.
    """
    _refuse_taken(folder, names, headers, overwrite=overwrite)
    made = _missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".synth-") as stage:
            yield Path(stage)
            for name in names:
                _move(Path(stage) / name, folder / name)
    except BaseException as error:
        for created in made:
            with suppress(OSError):
                created.rmdir()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{folder}: the disk is full", [Offence("DIR", "the disk is full")]) from None
        raise


def _move(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for inner in source.iterdir():
            _move(inner, target / inner.name)
    else:
        source.replace(target)


def _missing(folder: Path) -> list[Path]:
    """The folders that have to be made, the deepest first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _refuse_taken(folder: Path, names: Sequence[str], headers: Mapping[str, int], *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise invalid([Offence("DIR", f"{folder} is not a folder", "a folder, or a name that is free")])
    taken = [name for name in names if (folder / name).exists()]
    mine = [name for name in taken if overwrite or _is_header(folder / name, headers.get(name))]
    if kept := [name for name in taken if name not in mine]:
        legal = "another folder, or --overwrite"
        raise OutputExists(f"{folder}: {', '.join(kept)} exists", [Offence(name, "exists", legal) for name in kept])


def _is_header(path: Path, size: int | None) -> bool:
    """Left by `write_headers`: there is nothing in it to lose."""
    return path.is_file() and path.stat().st_size == size

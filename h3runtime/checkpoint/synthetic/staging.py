"""Several files that appear in a folder together, or not at all: made in a folder inside it, then moved into place.

What is there already is refused unless it may be replaced. Whatever ends the block early (an error, Ctrl-C), nothing of
it stays, and folders that were made for it go too. Fed by `synthesis`; it knows no checkpoints.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from h3runtime.errors import DiskFull, Offence, OutputExists, invalid


@contextmanager
def staged(folder: Path, names: Mapping[str, int | None], *, overwrite: bool) -> Iterator[Path]:
    """A folder inside `folder` whose contents move there, oldest first, when the block ends well; gone in any case.

    names: what must not be there yet, each with the size at which it may be all the same (there is nothing in it to
    lose) or None. OutputExists lists those in the way; contents of other names are replaced. A full disk is DiskFull.
    """
    _refuse_taken(folder, names, overwrite=overwrite)
    made = _missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".synth-") as stage:
            yield Path(stage)
            for moved in sorted(Path(stage).iterdir(), key=lambda path: path.stat().st_mtime_ns):
                _move(moved, folder / moved.name)
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


def _refuse_taken(folder: Path, names: Mapping[str, int | None], *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise invalid([Offence("DIR", f"{folder} is not a folder", "a folder, or a name that is free")])
    taken = [name for name, spare in names.items() if (folder / name).exists() and _size(folder / name) != spare]
    if taken and not overwrite:
        legal = "another folder, or --overwrite"
        raise OutputExists(f"{folder}: {', '.join(taken)} exists", [Offence(name, "exists", legal) for name in taken])


def _size(path: Path) -> int:
    """Of a file; of nothing else."""
    return path.stat().st_size if path.is_file() else -1

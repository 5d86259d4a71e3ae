"""`python -m h3runtime.checkpoint.embedded [FOLDER] [--from RUN]`: list the masters and all that is derived from them.

Run after the masters were trained anew, with the folder that the training left, or after the code that decides a
derived file's bytes was changed. Every format is derived and opened once, so that `derived.json` is only ever written
for masters that give files which can be read.
Prints each file with its SHA-256 and bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from h3runtime.checkpoint.embedded.adopting import adopt
from h3runtime.checkpoint.embedded.formats import FORMATS, SetFormat, derived_files
from h3runtime.checkpoint.embedded.listing import Listing, write_listing
from h3runtime.checkpoint.embedded.masters import COMPONENTS, digests, read_weights
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.embedded.sets import write_files
from h3runtime.checkpoint.families import require_component
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.errors import CheckpointError, Offence

LARGEST = 20_000_000
"""Bytes of all masters together that the package has room for."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m h3runtime.checkpoint.embedded", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="The masters. Default: the package's own.")
    parser.add_argument(
        "--from", dest="run", type=Path, metavar="RUN", help="Take them from a training's folder first."
    )
    given = parser.parse_args(arguments)
    folder = given.folder
    try:
        if given.run is not None:
            adopt(given.run, folder)
        print(list_derived(folder))
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def list_derived(folder: Path) -> Path:
    """Write the list of `folder`. CheckpointError for masters that give no files that can be read."""
    listing = Listing(folder, digests(folder), {}, "")
    _require_small(folder)
    for component in COMPONENTS:
        _require_finite(folder, component, read_weights(component, listing))
    return write_listing(folder, listing.masters, {kind: dict(_derived(kind, listing)) for kind in FORMATS})


def _derived(kind: SetFormat, listing: Listing) -> Iterator[tuple[str, str]]:
    """Names and digests of a set's files, made in a folder that goes again."""
    found: dict[str, str] = {}
    files = derived_files(kind)
    with tempfile.TemporaryDirectory() as made:
        write_files(Path(made), files, {}, listing, lambda path, digest: found.__setitem__(path.name, digest))
        for file in files:
            path = Path(made) / file.name
            with CheckpointFile(path) as opened:
                require_component(path, opened.shapes, file.component)
                print(f"{found[file.name]}  {opened.size:>10}  {kind:<12}  {file.name}")
    yield from found.items()


def _require_small(folder: Path) -> None:
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if total > LARGEST:
        raise checkpoint_error(folder, [Offence(FILE, f"holds {total} bytes", f"at most {LARGEST}")])


def _require_finite(folder: Path, component: str, weights: dict[str, torch.Tensor]) -> None:
    offences = [Offence(n, "isn't finite") for n, w in weights.items() if not bool(torch.isfinite(w).all())]
    if offences:
        raise checkpoint_error(folder / component, offences)


if __name__ == "__main__":
    sys.exit(main())

"""`derived.json`: the SHA-256 of every master and of every file that is derived from them.

    {"masters": {path below the folder: digest}, "sets": {format: {file name: digest}}}

It travels with the masters, so that every machine can tell that it has the right ones and makes the right files of
them. Its own digest names all of it: another master or another way of deriving gives another one. Written by the
command of this package; read by `masters` and `sets`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.embedded.packaged import NAME
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.synthetic.published import SetFormat
from h3runtime.checkpoint.tensor_file import checkpoint_error, reason
from h3runtime.errors import Offence

SHOWN_DIGITS = 16
REMEDY = "the installed package as it was published"


@dataclass(frozen=True, slots=True)
class Listing:
    """folder: of the masters. masters: by path below it. sets: by format, then file name. identity: 16 hex digits that
    stand for all of it."""

    folder: Path
    masters: Mapping[str, str]
    sets: Mapping[SetFormat, Mapping[str, str]]
    identity: str

    @property
    def trained(self) -> str:
        """16 hex digits that stand for the masters alone; what is derived from them bears it in its metadata."""
        return _digest(json.dumps(self.masters, sort_keys=True).encode())


def read_listing(folder: Path) -> Listing:
    """CheckpointError if it isn't there or isn't what `write_listing` writes."""
    path = folder / NAME
    try:
        content = path.read_bytes()
        table = json.loads(content)
        masters, sets = dict(table["masters"]), dict(table["sets"])
    except OSError as error:
        raise checkpoint_error(path, [Offence(FILE, f"can't be read: {reason(error)}", REMEDY)]) from None
    except (ValueError, TypeError, KeyError):
        raise checkpoint_error(path, [Offence(FILE, "isn't the list of the embedded model's files", REMEDY)]) from None
    return Listing(folder, masters, sets, _digest(content))


def write_listing(folder: Path, masters: Mapping[str, str], sets: Mapping[SetFormat, Mapping[str, str]]) -> Path:
    """Replaces what is there; the same contents give the same bytes."""
    path = folder / NAME
    table = {"masters": masters, "sets": sets}
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:SHOWN_DIGITS]

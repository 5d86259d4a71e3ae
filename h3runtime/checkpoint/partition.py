"""Which of the two H3 transformers a file is, as its name says: nothing inside can tell (checkpoint-formats §2.3).

Read by `report`, which calls it a hint, and by the engine, which refuses a file named after the partition it didn't ask
for: the clip would be wrong without an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FL2VA: Final = "fl2va"
REF2VA: Final = "ref2va"
PARTITIONS: Final = ((REF2VA, re.compile(r"ref2va?(?![a-z])", re.I)), (FL2VA, re.compile(r"fl2va?(?![a-z])", re.I)))
FOLDERS_READ: Final = 2
"""Names above the last one that may tell a partition: `FL2VA/transformer/`."""


def partition_hint(path: Path) -> str | None:
    """By the file's own name first, then by the folders right above it."""
    for name in reversed(path.absolute().parts[-1 - FOLDERS_READ :]):
        hint = next((partition for partition, pattern in PARTITIONS if pattern.search(name)), None)
        if hint is not None:
            return hint
    return None


def contradicts(path: Path, partition: str) -> bool:
    """Whether `path` is named after the other partition and not after this one. Of a file its own name counts alone:
    folders are often named after what they are used for."""
    said = {name for name, pattern in PARTITIONS if pattern.search(path.name)}
    if not said and path.is_dir():
        said = {partition_hint(path) or partition}
    return bool(said) and partition not in said

"""`*.safetensors.index.json`: which file of a folder holds which tensor, and what the folder's files make of it.

    {"metadata": {"total_size": bytes}, "weight_map": {"<tensor>": "<file name>", ...}}

Fed by `sources` with the index's path, and then with the headers of the files that it names. Nothing outside the folder
can be named. It reads no tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from h3runtime.checkpoint.header import FILE, printable
from h3runtime.checkpoint.tensor_file import TensorFile, checkpoint_error, reason
from h3runtime.errors import Offence

SUFFIX = ".safetensors.index.json"
MAX_BYTES = 100_000_000
"""As long as a safetensors header may be; the published ones have less than 0.2 MB."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Index:
    """`weight_map`: tensor -> file name. `total_size`: bytes of all tensors, where the index tells them."""

    path: Path
    weight_map: Mapping[str, str]
    total_size: int | None

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.weight_map.values())))


def read_index(path: Path) -> Index:
    """CheckpointError, naming the index and every entry at fault, if it isn't one."""
    table = _decoded(path)
    weight_map = table.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise checkpoint_error(path, [Offence(FILE, "has no `weight_map` of tensor names to file names")])
    offences = list(_illegal(weight_map))
    if offences:
        raise checkpoint_error(path, offences)
    metadata = table.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(path, weight_map, int(total) if isinstance(total, int | float) and total >= 0 else None)


def _decoded(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise checkpoint_error(path, [Offence(FILE, f"is longer than {MAX_BYTES} bytes")])
        table = json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise checkpoint_error(path, [Offence(FILE, "isn't JSON, or names something twice")]) from None
    except OSError as error:
        raise checkpoint_error(path, [Offence(FILE, f"can't be read: {reason(error)}")]) from None
    if not isinstance(table, dict):
        raise checkpoint_error(path, [Offence(FILE, "isn't a JSON object")])
    return table


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _illegal(weight_map: Mapping[str, object]) -> Iterator[Offence]:
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_inside(file):
            shown = printable(str(file)[:80])
            yield Offence(printable(name), f"is said to be in {shown}", "the name of a .safetensors file in the folder")


def _is_inside(file: str) -> bool:
    """A bare file name: no folder, no `..`, nothing absolute, on whatever system the index was written."""
    bare = PurePath(file).name == file and "\\" not in file and ":" not in file
    return bare and file.isprintable() and file.endswith(".safetensors") and not file.startswith(".")


def missing_files(index: Index) -> Iterator[Offence]:
    """Files that the index names and the folder lacks, with the tensors that go with them."""
    for file in index.files:
        if not (index.path.parent / file).is_file():
            lost = [printable(name) for name, where in index.weight_map.items() if where == file]
            more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
            yield Offence(file, f"is missing; {index.path.name} has {', '.join(lost[:SHOWN])}{more} in it")


def contradictions(index: Index, parts: Mapping[str, TensorFile]) -> Iterator[Offence]:
    """Where the headers of `parts` (by file name, all that could be opened) and the index differ."""
    where: dict[str, list[str]] = {}
    for file, part in parts.items():
        for name in part.header.entries:
            where.setdefault(name, []).append(file)
    for name, file in index.weight_map.items():
        if file in parts and file not in where.get(name, ()):
            elsewhere = f"; it is in {', '.join(where[name])}" if name in where else ""
            yield Offence(printable(name), f"isn't in {file}, where {index.path.name} has it{elsewhere}")
    for name, files in where.items():
        for file in files:
            if index.weight_map.get(name) != file and (name not in index.weight_map or len(files) > 1):
                yield Offence(name, f"is in {file}, but {index.path.name} doesn't have it there")


def size_warning(index: Index, found: int) -> str | None:
    """Names and shapes are checked one by one, so a wrong sum alone is no reason to refuse."""
    if index.total_size is None or index.total_size == found:
        return None
    return f"{index.path.name} has a total_size of {index.total_size} bytes, the tensors take {found}"

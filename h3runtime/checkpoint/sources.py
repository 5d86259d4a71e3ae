"""A path -> the safetensors files of one component, opened: one file, or a folder of them.

    file                      itself
    folder with an index      the files that `*.safetensors.index.json` names, checked against it name by name
    folder with one file      that file
    folder of NAME-0000i-of-0000n.safetensors without an index: all n of them
    anything else             CheckpointError that says what to name instead

Every tensor keeps the name it has in its file; `renaming` turns names into ours. Read by `file`, which judges what the
tensors mean, and by `report`. Only headers, the index and `config.json` are read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h3runtime.checkpoint.entries import StoredTensor, whole
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.index import SUFFIX, Index, contradictions, missing_files, read_index, size_warning
from h3runtime.checkpoint.tensor_file import TensorFile, checkpoint_error, reason
from h3runtime.errors import CheckpointError, Offence

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 1 << 20
SYNTHETIC_KEY = "h3runtime_synthetic"
"""Metadata entry, "1", of checkpoints that were made up and not trained."""
NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
MAGICS = (
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a PyTorch pickle (.pt, .pth, .ckpt)"),
    (b"\x80\x02", "a PyTorch pickle (.pt, .pth, .ckpt)"),
    (b"\x80\x04", "a PyTorch pickle (.pt, .pth, .ckpt)"),
)
"""First bytes of other containers that hold weights. A header of safetensors may be so long that its length, which
comes first, begins with a pickle's two (640 bytes, 66,176, ...): then the header itself follows."""
HEADER_STARTS = (8, b"{")
"""Where the header of a safetensors file begins, and with what."""


@dataclass(frozen=True, slots=True)
class Source:
    """path: as asked for. parts: the open files. entries: every tensor of them under its stored name.

    metadata: what the files' headers agree on. is_sharded: with an index or numbers; one file alone isn't.
    config: the folder's `config.json`, None for a file or where it has none.
    warnings: what is odd about the folder and no reason to refuse it.
    """

    path: Path
    parts: tuple[TensorFile, ...]
    entries: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    is_folder: bool = False
    is_sharded: bool = False
    config: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    def close(self) -> None:
        for part in self.parts:
            part.close()


def open_source(path: Path) -> Source:
    """CheckpointError lists all that is wrong with the files, the index and their agreement."""
    return _open_folder(path) if _is_dir(path) else _open_file(path)


def other_container(path: Path) -> str | None:
    """What the first bytes say, where they say something that isn't safetensors."""
    try:
        with path.open("rb") as file:
            first = file.read(HEADER_STARTS[0] + 1)
    except (OSError, ValueError):
        return None
    if first[HEADER_STARTS[0] :] == HEADER_STARTS[1]:
        return None
    return next((what for magic, what in MAGICS if first.startswith(magic)), None)


def _is_dir(path: Path) -> bool:
    with suppress(ValueError, OSError):
        return path.is_dir()
    return False


def _open_file(path: Path) -> Source:
    # A named pipe is refused by `TensorFile`, and reading its first bytes would wait for a writer.
    with suppress(ValueError, OSError):
        if path.is_file() and (other := other_container(path)) is not None:
            raise checkpoint_error(path, [Offence(FILE, f"is {other}", "a safetensors file")])
    part = TensorFile(path)
    entries = {name: whole(entry, 0) for name, entry in part.header.entries.items()}
    return Source(path, (part,), entries, part.header.metadata)


def _open_folder(folder: Path) -> Source:
    config = config_of(folder)
    listed = _safetensors(folder)
    index = _index(folder)
    names = _files_without_index(folder, listed) if index is None else index.files
    offences = [] if index is None else list(missing_files(index))
    parts = _open_all(folder, [n for n in names if n not in {o.field for o in offences}], offences)
    try:
        if index is not None:
            offences += contradictions(index, parts)
        entries = _merged(parts, offences)
        if offences:
            raise checkpoint_error(folder, offences)
    except BaseException:
        for part in parts.values():
            part.close()
        raise
    warnings = tuple(_warnings(index, entries, [n for n in listed if n not in names]))
    metadata = _common_metadata(tuple(parts.values()))
    is_sharded = index is not None or NUMBERED.fullmatch(names[0]) is not None
    return Source(folder, tuple(parts.values()), entries, metadata, True, is_sharded, config, warnings)


def _safetensors(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.suffix == ".safetensors" and not p.name.startswith("."))
    except OSError as error:
        raise checkpoint_error(folder, [Offence(FILE, f"can't be opened: {reason(error)}")]) from None


def _index(folder: Path) -> Index | None:
    found = sorted(p for p in folder.iterdir() if p.name.endswith(SUFFIX))
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise checkpoint_error(folder, [Offence(FILE, f"has more than one index: {names}", "one")])
    return read_index(found[0]) if found else None


def _files_without_index(folder: Path, listed: Sequence[str]) -> tuple[str, ...]:
    """One file, or all of a numbered series: what is whole without an index to say so."""
    if not listed:
        raise checkpoint_error(folder, [_nothing_there(folder)])
    series = [NUMBERED.fullmatch(name) for name in listed]
    first = series[0]
    if first is None or any(m is None or (m[1], m[3]) != (first[1], first[3]) for m in series):
        if len(listed) == 1:
            return tuple(listed)
        legal = "one .safetensors file, or an index that says which belong together"
        raise checkpoint_error(folder, [Offence(FILE, f"has {len(listed)} files and no index: {_some(listed)}", legal)])
    wanted = [f"{first[1]}-{i:05d}-of-{first[3]}.safetensors" for i in range(1, int(first[3]) + 1)]
    missing = [name for name in wanted if name not in listed]
    if missing or len(wanted) < len(listed):
        raise checkpoint_error(folder, [Offence(name, "is missing") for name in missing] or [_odd(listed, wanted)])
    return tuple(wanted)


def _odd(listed: Sequence[str], wanted: Sequence[str]) -> Offence:
    return Offence(FILE, f"has files outside their own numbering: {_some([n for n in listed if n not in wanted])}")


def _nothing_there(folder: Path) -> Offence:
    """Folders below may be what was meant: a pipeline's, or a release with a folder per partition."""
    below = sorted({str(p.parent.relative_to(folder)) for p in _below(folder)})
    if below:
        return Offence(FILE, "is a directory of several models; name the one that is meant", _some(below, 12))
    return Offence(FILE, "is a directory without .safetensors files")


def _below(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from folder.glob("*/*.safetensors")
        yield from folder.glob("*/*/*.safetensors")


def _some(names: Sequence[str], shown: int = 4) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def _open_all(folder: Path, names: Sequence[str], offences: list[Offence]) -> dict[str, TensorFile]:
    """By name, those that could be opened; what is wrong with the others is added to `offences`, under their names."""
    parts: dict[str, TensorFile] = {}
    for name in names:
        try:
            parts[name] = TensorFile(folder / name)
        except CheckpointError as error:
            offences += [Offence(_of(name, o.field), o.message, o.legal) for o in error.offences]
    return parts


def _of(file: str, field: str) -> str:
    return file if field == FILE else f"{file}: {field}"


def _merged(parts: Mapping[str, TensorFile], offences: list[Offence]) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    told = {o.field for o in offences}
    for number, part in enumerate(parts.values()):
        for name, entry in part.header.entries.items():
            if name in found and name not in told:
                first = list(parts)[found[name].spans[0].part] if found[name].spans else part.path.name
                offences.append(Offence(name, f"is in {first} and in {part.path.name}"))
            found[name] = whole(entry, number)
    return found


def _common_metadata(parts: Sequence[TensorFile]) -> dict[str, str]:
    """What no two headers contradict each other about. Made up are the weights only if every file says so."""
    tables = [part.header.metadata for part in parts]
    values: dict[str, set[str]] = {}
    for table in tables:
        for key, value in table.items():
            values.setdefault(key, set()).add(value)
    found = {key: next(iter(several)) for key, several in values.items() if len(several) == 1}
    if any(SYNTHETIC_KEY not in table for table in tables):
        found.pop(SYNTHETIC_KEY, None)
    return found


def _warnings(index: Index | None, entries: Mapping[str, StoredTensor], others: Sequence[str]) -> Iterator[str]:
    if index is None:
        return
    wrong_size = size_warning(index, sum(e.nbytes for e in entries.values()))
    if wrong_size is not None:
        yield wrong_size
    if others:
        yield f"{index.path.name} doesn't name {_some(others)}, which is left alone"


def config_of(folder: Path) -> Mapping[str, Any] | None:
    """The folder's `config.json`, None if it has none; CheckpointError if it isn't a JSON object."""
    path = folder / CONFIG_NAME
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise checkpoint_error(path, [Offence(FILE, f"is longer than {MAX_CONFIG_BYTES} bytes")])
        found = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise checkpoint_error(path, [Offence(FILE, f"can't be read: {reason(error)}")]) from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise checkpoint_error(path, [Offence(FILE, "isn't a JSON object")])
    return found

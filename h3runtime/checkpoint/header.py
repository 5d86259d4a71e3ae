"""The header of a safetensors file, judged before a single tensor is read.

    bytes 0..8          header length n, little endian
    bytes 8..8+n        JSON object: name -> {"dtype", "shape", "data_offsets": [start, stop]}, and `__metadata__`
    bytes 8+n..end      the data; offsets count from here; every byte belongs to exactly one tensor

Pure functions from bytes to a `Header`, fed by `file`; every fault becomes an `Offence`, so that one error can list
them all. It reads no tensors and knows no model.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from h3runtime.errors import Offence

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""Limit of the safetensors format itself."""
MOST_DIGITS = 20
"""Of a 64-bit number, and its sign."""
MAX_RANK = 64
"""PyTorch's own limit."""
FILE = "(file)"
"""What an `Offence` names when it is about the file and not about one tensor."""

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
"""In the format's own order, by which its writer lays tensors out."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One stored tensor. `start` and `stop` are bytes from the start of the data section."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """entries in the header's order, the metadata, and where the data section begins in the file."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int


class HeaderError(Exception):
    """The header can't be understood; internal to this package, `file` turns it into a `CheckpointError`."""

    def __init__(self, offences: list[Offence]) -> None:
        super().__init__(offences)
        self.offences = offences


def header_length(first: bytes, file_bytes: int) -> int:
    """Length of the JSON, from the first bytes (8 or more where the file has them) of a file of `file_bytes` bytes."""
    if file_bytes == 0:
        raise _fault("is empty (0 bytes)")
    if len(first) < LENGTH_BYTES:
        raise _fault(f"has {file_bytes} bytes, too few for a safetensors file")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length < 2 or length > MAX_HEADER_BYTES:
        if other := _what_else(first):
            raise _fault(other)
        raise _fault(f"isn't a safetensors file: header length {length}", f"2..{MAX_HEADER_BYTES}")
    if LENGTH_BYTES + length > file_bytes:
        raise _fault(f"is truncated inside its header: {file_bytes} bytes, the header ends at {LENGTH_BYTES + length}")
    return length


def _what_else(first: bytes) -> str:
    """A friendlier word for the two things that are found most often under a checkpoint's name."""
    if first.lstrip()[:1] == b"<":
        return "is a web page, not a safetensors file; the download met a login or an error page"
    if first.startswith(b"version "):
        return "is a git-lfs pointer, not the file itself"
    return ""


def parse_header(raw: bytes, file_bytes: int) -> Header:
    """`raw` is the JSON of a file of `file_bytes` bytes. Raises HeaderError listing every offender."""
    table = _decode(raw)
    offences: list[Offence] = []
    metadata = _metadata(table.pop("__metadata__", {}), offences)
    entries: dict[str, TensorEntry] = {}
    for name, value in table.items():
        entry = _entry(name, value)
        if isinstance(entry, Offence):
            offences.append(entry)
        else:
            entries[name] = entry
    data_start = LENGTH_BYTES + len(raw)
    if not offences:
        offences = _coverage(entries, file_bytes - data_start)
    if offences:
        raise HeaderError(offences)
    return Header(entries, metadata, data_start)


def _fault(message: str, legal: str = "") -> HeaderError:
    return HeaderError([Offence(FILE, message, legal)])


@dataclass
class _Pairs:
    """Collects JSON objects while refusing duplicate keys, which `json` would silently drop."""

    repeated: list[str] = field(default_factory=list)

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            self.repeated += [name for name, n in Counter(name for name, _ in pairs).items() if n > 1]
        return table


def _decode(raw: bytes) -> dict[str, Any]:
    pairs = _Pairs()
    if raw[:1] != b"{":
        raise _fault("has a header that isn't a JSON object")
    try:
        table = json.loads(
            raw.decode("utf-8"), object_pairs_hook=pairs, parse_constant=_no_constant, parse_int=_natural
        )
    except (ValueError, RecursionError) as error:
        raise _fault(f"has a header that isn't JSON ({_first_line(error)})") from None
    if pairs.repeated:
        raise HeaderError([Offence(printable(name), "occurs twice in the header") for name in pairs.repeated])
    assert isinstance(table, dict)
    return table


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} isn't JSON")


def _natural(digits: str) -> int:
    """A number has no place in a header if it is negative, and -0 is made so, or longer than any file is."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits) if digits != "-0" else -1


def _first_line(error: Exception) -> str:
    return printable(str(error).partition("\n")[0][:120]) or type(error).__name__


def printable(name: str) -> str:
    """`name` as it may appear in a log or an answer: control characters and lone surrogates escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _metadata(value: object, offences: list[Offence]) -> Mapping[str, str]:
    if isinstance(value, dict) and all(isinstance(v, str) and _is_text(k + v) for k, v in value.items()):
        return value
    offences.append(Offence("__metadata__", "isn't an object of strings"))
    return {}


def _is_text(value: str) -> bool:
    """No lone surrogates, which JSON can spell and UTF-8 can't."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(name: str, value: object) -> TensorEntry | Offence:
    shown = printable(name)
    if shown != name:
        return Offence(shown, "isn't a printable name")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        return Offence(shown, "isn't described by exactly dtype, shape and data_offsets")
    dtype, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return Offence(shown, f"has the unknown dtype {printable(str(dtype)[:40])}", ", ".join(DTYPES))
    if not _naturals(shape) or len(shape) > MAX_RANK or math.prod(max(d, 1) for d in shape) >= 2**62:
        return Offence(shown, f"has the illegal shape {printable(str(shape)[:80])}")
    if not _naturals(span) or len(span) != 2 or span[0] > span[1]:
        return Offence(shown, f"has the illegal data_offsets {printable(str(span)[:80])}")
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if span[1] - span[0] != expected:
        return Offence(shown, f"spans {span[1] - span[0]} bytes, but {dtype} {shape} needs {expected}")
    return TensorEntry(name, DTYPES[dtype], tuple(shape), span[0], span[1])


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _coverage(entries: Mapping[str, TensorEntry], data_bytes: int) -> list[Offence]:
    """Every data byte belongs to one tensor, none is missing, none is left over."""
    offences: list[Offence] = []
    end = 0
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.stop)):
        if entry.stop > data_bytes:
            offences.append(
                Offence(entry.name, f"ends at data byte {entry.stop}, the file has {data_bytes} (truncated)")
            )
        elif entry.start < end:
            offences.append(Offence(entry.name, f"starts at data byte {entry.start}, inside the tensor before it"))
        elif entry.start > end:
            offences.append(Offence(entry.name, f"starts at data byte {entry.start}, leaving a gap from {end}"))
        end = max(end, entry.stop)
    if end < data_bytes:
        offences.append(Offence(FILE, f"has {data_bytes - end} extra bytes after the last tensor"))
    return offences

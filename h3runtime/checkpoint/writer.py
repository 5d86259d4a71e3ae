"""Writing a safetensors file whose bytes depend on nothing but its contents.

Tensors are laid out as the official writer does, by descending dtype and then by name, so each starts aligned; the
header is padded with spaces to 8 bytes. (The official writer orders its metadata at random, which would spoil a hash.)
The file appears under its name whole or not at all. Fed by `synthetic` and the tests.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from h3runtime.checkpoint.header import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}
RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}
Described = tuple[torch.dtype, tuple[int, ...]]


def write_file(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """CPU tensors and metadata -> `path`, replacing what is there. OSError if the disk says no."""
    layout = in_order({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()})
    header = encode_header(layout, metadata)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(header)
            for name in layout:
                out.write(tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def in_order(layout: Mapping[str, Described]) -> dict[str, Described]:
    """The official order: later dtypes of the format's own list first, then by name."""
    return dict(sorted(layout.items(), key=lambda item: (-RANKS[item[1][0]], item[0])))


def encode_header(tensors: Mapping[str, Described], metadata: Mapping[str, str] | None = None) -> bytes:
    """Length and JSON for tensors that follow each other in the order given."""
    table: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        table[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text

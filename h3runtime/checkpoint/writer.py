"""Writing a safetensors file whose bytes depend on nothing but its contents.

Tensors are laid out as the official writer does, by descending dtype and then by name, so each starts aligned; the
header is padded with spaces to 8 bytes. (The official writer orders its metadata at random, which would spoil a hash.)
The file appears under its name whole or not at all. Fed by `made_files`, `full_size` and the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch

from h3runtime.checkpoint.header import DTYPES, FILE
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.errors import Offence

NAMES = {dtype: name for name, dtype in DTYPES.items()}
RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}
Described = tuple[torch.dtype, tuple[int, ...]]
"""dtype and shape of a tensor that a file has or will have."""


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path`, replacing what is there, once the block ends well; else it is gone.

    Flushed to the disk before it appears. OSError if the disk says no.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None = None,
    expected: str | None = None,
) -> str:
    """CPU tensors and metadata -> `path`, replacing what is there. Its SHA-256; OSError if the disk says no.

    expected: the SHA-256 that it has to have; CheckpointError, and no file, if it gets another one.
    """
    layout = in_order({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()})
    digest = hashlib.sha256()
    with appearing(path) as out:
        for part in _parts(layout, tensors, metadata):
            digest.update(part)
            out.write(part)
        if expected not in (None, digest.hexdigest()):
            told = f"was made with SHA-256 {digest.hexdigest()}, but has to have {expected}"
            raise checkpoint_error(path, [Offence(FILE, told)])
    return digest.hexdigest()


def _parts(
    layout: Mapping[str, Described], tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None
) -> Iterator[bytes | memoryview]:
    yield encode_header(layout, metadata)
    for name in layout:
        yield tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_whole(path: Path, content: bytes) -> None:
    """A small file, whole or not at all."""
    with appearing(path) as out:
        out.write(content)


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

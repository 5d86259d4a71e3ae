"""A component's stored tensor, wherever its bytes lie: one or more spans of one or more files.

Most tensors are one span. Rows in another order, and tensors that a file keeps in pieces, are spans in the order the
model wants them, so that reordering costs nothing and never needs a second copy. Made by `file`; no bytes are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.checkpoint.header import TensorEntry


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of the data section of file number `part`."""

    part: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """dtype and shape as stored; `spans` follow each other in the tensor's own row-major bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    spans: tuple[Span, ...]

    @property
    def nbytes(self) -> int:
        return sum(span.nbytes for span in self.spans)


def whole(entry: TensorEntry, part: int) -> StoredTensor:
    """A header's entry of file number `part`, as it is."""
    return StoredTensor(entry.name, entry.dtype, entry.shape, (Span(part, entry.start, entry.stop),))

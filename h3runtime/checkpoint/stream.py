"""Every wanted tensor of a checkpoint, read in the order of its files' bytes.

    for name, tensor in stream(file, names, device): ...

Tensors without bytes come first: empty ones, and what a layout has computed. Every other one comes once all its spans
are there. Bytes pass through the few buffers of `blocks`, so that memory beside the tensors doesn't grow with a file.
On the same way files are hashed whole, if asked for: each byte is read once, whether for a tensor, for the digest or
for both. Read by `load` and `refill`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from h3runtime.checkpoint.blocks import Block, Reader, plan
from h3runtime.checkpoint.file import CheckpointFile


@dataclass(frozen=True, slots=True)
class Reading:
    """What else is wanted of a read.

    hashed: numbers of the files to read whole and hash. on_digest: gets number and SHA-256 of each, after the last
    tensor. on_position: gets bytes of all files that lie behind us, read or skipped; it never falls.
    """

    hashed: frozenset[int] = frozenset()
    on_digest: Callable[[int, str], None] = field(default=lambda _part, _digest: None)
    on_position: Callable[[int], None] = field(default=lambda _position: None)


def stream(
    file: CheckpointFile, names: Collection[str], device: torch.device, reading: Reading | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor in its stored dtype on `device`), each of `names` once.

    On a CUDA device a tensor may still be on its way: it is whole for what the current stream does next.
    CheckpointError for what can't be read, and for a file that changed before the end.
    """
    yield from stream_groups(file, [names], device, reading)


def stream_groups(
    file: CheckpointFile, groups: Sequence[Collection[str]], device: torch.device, reading: Reading | None = None
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """`stream` of one group of names after the other, read ahead over their bounds: for who needs them in that order.

    Tensors without bytes come first, those of all groups. Nothing can be hashed with more than one group.
    """
    reading = reading or Reading()
    assert len(groups) == 1 or not reading.hashed
    sizes = [part.size for part in file.parts]
    blocks: list[Block] = []
    owners: list[_Growing] = []
    for names in groups:
        for name in names:
            if file.entries[name].nbytes == 0:
                yield name, file.read(name, device)
        growing = _Growing(file, device, names)
        planned = plan(sizes, growing.wanted, reading.hashed)
        blocks += planned
        owners += [growing] * len(planned)
    reader = Reader(file.parts, reading.hashed, device)
    for part in file.parts:
        part.expect_sequential()
    for owner, (block, host) in zip(owners, reader.read(blocks), strict=True):
        yield from owner.take(block, host)
        reading.on_position(sum(sizes[: block.part]) + block.stop)
    for part in file.parts:
        part.drop()
        part.require_unchanged()
    for number, digest in reader.digests().items():
        reading.on_digest(number, digest)
    reading.on_position(sum(sizes))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where one span of a tensor lies in the files, and from which of the tensor's own bytes it goes on."""

    at: Block
    name: str
    offset: int


def _pieces(file: CheckpointFile, names: Collection[str]) -> Iterator[_Piece]:
    for name in names:
        offset = 0
        for span in file.entries[name].spans:
            if span.nbytes:
                start = file.parts[span.part].data_start
                yield _Piece(Block(span.part, start + span.start, start + span.stop), name, offset)
            offset += span.nbytes


class _Growing:
    """Tensors of which some bytes are there."""

    def __init__(self, file: CheckpointFile, device: torch.device, names: Collection[str]) -> None:
        self._file, self._device = file, device
        self._pieces = deque(sorted(_pieces(file, names), key=lambda piece: (piece.at.part, piece.at.start)))
        self.wanted = [piece.at for piece in self._pieces]
        self._left: dict[str, int] = {}
        for piece in self._pieces:
            self._left[piece.name] = self._left.get(piece.name, 0) + 1
        self._raw: dict[str, torch.Tensor] = {}
        self._open: list[_Piece] = []

    def take(self, block: Block, host: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Copy what `block` has of anything; out come the tensors that are whole now."""
        while self._pieces and self._begins(self._pieces[0], block):
            self._open.append(self._pieces.popleft())
        for piece in self._open:
            self._copy(piece, block, host)
            if piece.at.stop <= block.stop:
                yield from self._finish(piece.name)
        self._open = [piece for piece in self._open if piece.at.stop > block.stop]

    def _begins(self, piece: _Piece, block: Block) -> bool:
        return piece.at.part == block.part and piece.at.start < block.stop

    def _copy(self, piece: _Piece, block: Block, host: torch.Tensor) -> None:
        if piece.name not in self._raw:
            nbytes = self._file.entries[piece.name].nbytes
            self._raw[piece.name] = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        start, stop = max(piece.at.start, block.start), min(piece.at.stop, block.stop)
        to = piece.offset + start - piece.at.start
        source = host[start - block.start : stop - block.start]
        self._raw[piece.name][to : to + stop - start].copy_(source, non_blocking=True)

    def _finish(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        self._left[name] -= 1
        if self._left[name] == 0:
            entry = self._file.entries[name]
            yield name, self._raw.pop(name).view(entry.dtype).reshape(entry.shape)

"""Files in blocks: read ahead by one thread, hashed by another, while the caller uses the block before.

    plan      which bytes: a file that is to be hashed whole, another only where somebody wants it; in order, each once
    read      block after block in a small ring of buffers; what has been read is dropped from the page cache

    ring:     read k+3 | read k+2 | use k | hash k, k-1 ...

A buffer is filled anew only after its hash is done and, for a CUDA device, after the copies that the caller started on
the current stream: the ring is page-locked then, so that those copies are asynchronous. The ring is all that reading
keeps: BLOCK_BYTES x SLOTS. Asked by `stream`; `tensor_file` reads the bytes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import torch

from h3runtime.checkpoint.tensor_file import TensorFile

BLOCK_BYTES = 32 << 20
"""Long enough that a disk's latency and a thread's waking don't count, short enough for SLOTS of them."""
SLOTS = 4
AHEAD = SLOTS - 1
"""Blocks that are being read or wait to be used; the last slot's hash may still be running."""


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes [start, stop) of file number `part`; offsets count from the file's first byte."""

    part: int
    start: int
    stop: int


def plan(sizes: Sequence[int], wanted: Iterable[Block], whole: frozenset[int]) -> list[Block]:
    """Blocks of at most BLOCK_BYTES, in order, that cover `wanted` once, and the files numbered in `whole` from end to
    end. They are cut where the offset is a multiple of BLOCK_BYTES, and so on a page."""
    ranges = [Block(part, 0, sizes[part]) for part in whole]
    ranges += [block for block in wanted if block.part not in whole and block.start < block.stop]
    return [piece for block in _joined(ranges) for piece in _cut(block)]


def _joined(ranges: Iterable[Block]) -> Iterator[Block]:
    held: Block | None = None
    for block in sorted(ranges, key=lambda b: (b.part, b.start)):
        if held is not None and held.part == block.part and block.start <= held.stop:
            held = Block(held.part, held.start, max(held.stop, block.stop))
        else:
            if held is not None:
                yield held
            held = block
    if held is not None:
        yield held


def _cut(block: Block) -> Iterator[Block]:
    first = block.start - block.start % BLOCK_BYTES + BLOCK_BYTES
    edges = [block.start, *range(first, block.stop, BLOCK_BYTES), block.stop]
    return (Block(block.part, start, stop) for start, stop in pairwise(edges) if start < stop)


class Reader:
    """Reads planned blocks of `parts`; hashes the files numbered in `hashed`, whose blocks must cover them."""

    def __init__(self, parts: Sequence[TensorFile], hashed: frozenset[int], device: torch.device) -> None:
        self._parts, self._device = parts, device
        self._sums = {part: hashlib.sha256() for part in hashed}

    def read(self, blocks: Sequence[Block]) -> Iterator[tuple[Block, torch.Tensor]]:
        """Each block and its bytes, uint8 in host memory, the caller's until the next step. CheckpointError."""
        size = max((block.stop - block.start for block in blocks), default=0)
        ring = [_Slot(size, self._device) for _ in range(min(SLOTS, len(blocks)))]
        reading, hashing = ThreadPoolExecutor(1, "read"), ThreadPoolExecutor(1, "hash")
        ahead: deque[tuple[Block, _Slot, Future[None]]] = deque()
        try:
            for number, block in enumerate(blocks):
                slot = ring[number % SLOTS]
                slot.wait()
                ahead.append((block, slot, reading.submit(self._read, block, slot, hashing)))
                if len(ahead) == AHEAD:
                    yield from _use(*ahead.popleft())
            while ahead:
                yield from _use(*ahead.popleft())
            for slot in ring:
                slot.wait()
        finally:
            reading.shutdown(cancel_futures=True)
            hashing.shutdown(cancel_futures=True)

    def digests(self) -> Mapping[int, str]:
        """SHA-256 by file number, of what has been read."""
        return {part: found.hexdigest() for part, found in self._sums.items()}

    def _read(self, block: Block, slot: _Slot, hashing: ThreadPoolExecutor) -> None:
        """In the reading thread."""
        part, bytes_ = self._parts[block.part], slot.first(block.stop - block.start).numpy().data
        part.fill(bytes_, block.start)
        part.drop(block.stop)
        if block.part in self._sums:
            slot.hashed = hashing.submit(self._sums[block.part].update, bytes_)


def _use(block: Block, slot: _Slot, reading: Future[None]) -> Iterator[tuple[Block, torch.Tensor]]:
    reading.result()
    yield block, slot.first(block.stop - block.start)
    slot.mark()


class _Slot:
    """One buffer of the ring, and what must have happened before it is filled again."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self._device is not None)
        self.hashed: Future[None] | None = None
        self._copied: torch.cuda.Event | None = None

    def first(self, count: int) -> torch.Tensor:
        return self._buffer[:count]

    def mark(self) -> None:
        """Every copy out of it has been started."""
        if self._device is not None:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        if self.hashed is not None:
            self.hashed.result()
        if self._copied is not None:
            self._copied.synchronize()
        self.hashed = self._copied = None

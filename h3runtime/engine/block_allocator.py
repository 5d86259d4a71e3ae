"""What PyTorch's CUDA allocator counts as allocated for tensors that are made one after the other and stay.

    up to 1 MiB   in steps of 512 bytes, out of segments of 2 MiB
    above         in steps of 512 bytes: below 10 MiB out of segments of 20 MiB, else of a segment of its own, which is
                  rounded up to 2 MiB
    either way    the smallest free piece that is large enough; what is left of it becomes a piece of its own, but of a
                  large one only more than 1 MiB: less stays with the tensor and counts

So a tensor of some MiB may count up to 1 MiB more than it has. The sums are the allocator's own behaviour (documented
constants of `CUDACachingAllocator`, default settings), not a fit: a load of 46.6 GB on an H200 came out to the byte
(benchmarks/LOG.md). Nothing is given back here. Fed by `planning` with the tensors of models in the order of loading.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from h3runtime.settings import MIB

STEP: Final = 512
SMALL: Final = MIB
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
OWN_SEGMENT: Final = 10 * MIB
"""From here on a tensor has a segment of its own, in steps of `SMALL_SEGMENT`."""


class BlockAllocator:
    """total: bytes that count as allocated."""

    def __init__(self) -> None:
        self.total = 0
        self._small: list[int] = []
        self._large: list[int] = []

    def take(self, sizes: Iterable[int]) -> int:
        """Bytes that tensors of these sizes count as, each of them held from now on."""
        before = self.total
        for nbytes in sizes:
            self._take(nbytes)
        return self.total - before

    def _take(self, nbytes: int) -> None:
        if not nbytes:
            return
        wanted = _up(nbytes, STEP)
        is_small = wanted <= SMALL
        free = self._small if is_small else self._large
        found = bisect_left(free, wanted)
        piece = free.pop(found) if found < len(free) else _segment(wanted)
        rest = piece - wanted
        if rest >= STEP if is_small else rest > SMALL:
            insort(free, rest)
            piece = wanted
        self.total += piece


def _segment(wanted: int) -> int:
    if wanted <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if wanted < OWN_SEGMENT else _up(wanted, SMALL_SEGMENT)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step

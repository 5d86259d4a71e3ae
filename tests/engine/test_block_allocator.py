"""The allocator's rounding, case by case."""

from __future__ import annotations

import pytest

from h3runtime.engine.block_allocator import BlockAllocator
from h3runtime.settings import MIB


@pytest.mark.parametrize(
    ("nbytes", "counted"),
    [
        (0, 0),
        (1, 512),
        (512, 512),
        (513, 1024),
        (MIB, MIB),
        # Out of 20 MiB: what is left is a piece of its own.
        (MIB + 1, MIB + 512),
        (9 * MIB, 9 * MIB),
        # A segment of its own, in steps of 2 MiB: up to 1 MiB stays with the tensor.
        (11 * MIB, 12 * MIB),
        (11 * MIB + 512, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512),
        (12 * MIB, 12 * MIB),
        # One of NVFP4's q, k and v, of 55.125 MiB.
        (57_802_752, 56 * MIB),
    ],
)
def test_one_tensor_in_an_empty_memory(nbytes: int, counted: int) -> None:
    assert BlockAllocator().take([nbytes]) == counted


def test_a_free_piece_that_fits_is_taken_before_a_new_segment() -> None:
    allocator = BlockAllocator()
    assert allocator.take([12 * MIB + 512]) == 12 * MIB + 512
    # 2 MiB less 512 bytes are left of 14: a tensor of 1.5 MiB has them, and keeps what is too little for a piece.
    assert allocator.take([3 * MIB // 2]) == 2 * MIB - 512
    assert allocator.total == 14 * MIB


def test_the_smallest_piece_is_taken() -> None:
    allocator = BlockAllocator()
    # Leaves 13 MiB of 20; then 1.5 of 14.5 that a segment of 16 has.
    allocator.take([7 * MIB])
    allocator.take([29 * MIB // 2])
    assert allocator.take([5 * MIB // 4]) == 3 * MIB // 2


def test_small_tensors_fill_segments() -> None:
    allocator = BlockAllocator()
    assert allocator.take([1000] * 4096) == 4096 * 1024 == allocator.total

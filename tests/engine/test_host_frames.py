"""Chunks on their way to the host: bytes of each, and whether the numbers that they were made of were finite."""

from __future__ import annotations

import pytest
import torch

from h3runtime.engine.host_frames import to_host
from h3runtime.vae.video_pixels import to_bytes


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_one_number_that_is_not_finite_is_told_of_its_chunk(odd: float) -> None:
    chunks = [torch.rand(3, 2, 8, 8).permute(1, 2, 3, 0) for _ in range(3)]
    chunks[1][1, 4, 2, 0] = odd
    assert [chunk.finite for chunk in to_host(chunks)] == [True, False, True]


def test_bytes_are_those_of_the_chunk() -> None:
    chunks = [torch.rand(2, 8, 8, 3), torch.rand(3, 1, 8, 8).permute(1, 2, 3, 0)]
    for sent, chunk in zip(to_host(chunks), chunks, strict=True):
        assert (sent.pixels == to_bytes(chunk).numpy()).all() and sent.pixels.flags.c_contiguous

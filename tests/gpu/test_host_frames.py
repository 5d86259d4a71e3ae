"""Frames through the pinned double buffer are the bytes of a plain copy, in order, and tell where values went bad."""

import numpy as np
import pytest
import torch

from h3runtime.engine.host_frames import to_host
from h3runtime.vae.video_pixels import to_bytes

pytestmark = pytest.mark.gpu

LENGTHS = (17, 17, 3, 17, 5, 22)
"""Parts of a clip: shorter and longer ones in between, so that buffers are reused and grown."""


def chunks(device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(n, 96, 160, 3, generator=generator).to(device) for n in LENGTHS]


def test_bytes_are_those_of_a_plain_copy(cuda: torch.device) -> None:
    given = chunks(cuda)
    for sent, frames in zip(to_host(iter(given)), given, strict=True):
        assert sent.finite
        assert np.array_equal(sent.pixels, to_bytes(frames.cpu()).numpy())


def test_chunks_may_vanish_behind_the_copy(cuda: torch.device) -> None:
    """What the decoder does: a chunk's memory is used again for the next one while its copy is under way."""
    wanted = [to_bytes(frames).numpy() for frames in chunks(torch.device("cpu"))]
    scratch = torch.empty(max(LENGTHS), 96, 160, 3, device=cuda)

    def decoded():
        for frames in chunks(torch.device("cpu")):
            scratch[: len(frames)].copy_(frames)
            yield scratch[: len(frames)]

    for sent, pixels in zip(to_host(decoded()), wanted, strict=True):
        assert np.array_equal(sent.pixels, pixels)


@pytest.mark.parametrize("bad", range(len(LENGTHS)))
def test_the_bad_chunk_is_named(cuda: torch.device, bad: int) -> None:
    given = chunks(cuda)
    given[bad][-1, 0, 0, 0] = float("nan")
    assert [sent.finite for sent in to_host(given)] == [index != bad for index in range(len(LENGTHS))]

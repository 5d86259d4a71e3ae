"""Decoded chunks from the device to the host, one behind, so that a copy overlaps the next chunk's decode.

fp32 frames in, bytes and a finite flag out; on CUDA through two pinned buffers in stream order. Fed by the video VAE's
generator; read by the checks and the clip writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.vae.video_pixels import to_bytes


@dataclass(frozen=True, slots=True, eq=False)
class HostChunk:
    """pixels uint8 RGB [n, H, W, 3], valid until the chunk after next; finite: of the values they were made from."""

    pixels: NDArray[np.uint8]
    finite: bool


def to_host(chunks: Iterable[torch.Tensor]) -> Iterator[HostChunk]:
    """fp32 [n, H, W, 3] in [0, 1] -> bytes on the host."""
    slots = (_Slot(), _Slot())
    held: _Slot | None = None
    for index, frames in enumerate(chunks):
        slot = slots[index % 2]
        slot.fill(frames)
        if frames.device.type != "cuda":
            yield slot.take()
            continue
        if held is not None:
            yield held.take()
        held = slot
    if held is not None:
        yield held.take()


class _Slot:
    """One buffer, kept from chunk to chunk, and the event that says its copy has arrived."""

    def __init__(self) -> None:
        self._pixels = torch.empty(0, dtype=torch.uint8)
        self._finite = torch.zeros((), dtype=torch.bool)
        self._count = 0
        self._arrived: torch.cuda.Event | None = None

    def fill(self, frames: torch.Tensor) -> None:
        # Of numbers in [0, 1] the sum is finite if and only if all of them are; one pass where `isfinite` makes four.
        pixels, finite = to_bytes(frames), torch.isfinite(frames.sum())
        self._count = len(pixels)
        if frames.device.type != "cuda":
            self._pixels, self._finite = pixels, finite
            return
        if self._pixels.shape[1:] != pixels.shape[1:] or len(self._pixels) < len(pixels):
            self._pixels = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=True)
            self._finite = torch.zeros((), dtype=torch.bool, pin_memory=True)
        self._pixels[: self._count].copy_(pixels, non_blocking=True)
        self._finite.copy_(finite, non_blocking=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived.record(torch.cuda.current_stream(frames.device))

    def take(self) -> HostChunk:
        if self._arrived is not None:
            self._arrived.synchronize()
        return HostChunk(self._pixels[: self._count].numpy(), bool(self._finite))

"""Every wanted tensor of a checkpoint, read in the order of its files' bytes.

    for name, tensor in stream(file, names, device): ...

A tensor comes out once all its spans are there. Tensors for the CPU are read straight into their own storage; for
another device they pass through one reused staging buffer, so that memory doesn't grow with the file. Read by `load`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from h3runtime.checkpoint.entries import Span
from h3runtime.checkpoint.file import CheckpointFile

STAGING_BYTES = 64 << 20


def stream(file: CheckpointFile, names: Collection[str], device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor in its stored dtype on `device`), each of `names` once; CheckpointError for what can't be read."""
    pieces = sorted(_pieces(file, names), key=lambda piece: (piece[0].part, piece[0].start))
    left = {name: len(file.entries[name].spans) for name in names}
    raw: dict[str, torch.Tensor] = {}
    staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True) if device.type == "cuda" else None
    for span, name, at in pieces:
        if name not in raw:
            raw[name] = torch.empty(file.entries[name].nbytes, dtype=torch.uint8, device=device)
        _fill(file, span, name, raw[name][at : at + span.nbytes], staging)
        left[name] -= 1
        if left[name] == 0:
            entry = file.entries[name]
            yield name, raw.pop(name).view(entry.dtype).reshape(entry.shape)


def _pieces(file: CheckpointFile, names: Collection[str]) -> Iterator[tuple[Span, str, int]]:
    """Every span with the tensor it belongs to and its place in that tensor's bytes."""
    for name in names:
        at = 0
        for span in file.entries[name].spans:
            yield span, name, at
            at += span.nbytes


def _fill(file: CheckpointFile, span: Span, name: str, target: torch.Tensor, staging: torch.Tensor | None) -> None:
    part = file.parts[span.part]
    start = part.data_start + span.start
    if staging is None:
        if span.nbytes:
            part.fill(target.numpy().data, start, name)
        return
    for done in range(0, span.nbytes, STAGING_BYTES):
        buffer = staging[: min(STAGING_BYTES, span.nbytes - done)]
        part.fill(buffer.numpy().data, start + done, name)
        target[done : done + buffer.numel()].copy_(buffer)

"""Stored tensors with their rows in another order, joined from several, or halved: as spans, so that nothing is read.

    rows a..b of a row-major tensor [N, ...] are the bytes a * R .. b * R,   R = bytes of one row

Block scales in tiles of 128 rows ([ru(N, 128), C], checkpoint-formats §3) follow the same rule as long as a and b are
multiples of 128: the bytes of 128 whole rows are the tiles of these rows. Used by `renaming` and `qkv_order`; it knows
no names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from h3runtime.checkpoint.entries import Span, StoredTensor


def rows_of(entry: StoredTensor, start: int, stop: int) -> tuple[Span, ...]:
    """The bytes of rows [start, stop) of `entry`, which has at least one dimension."""
    row = entry.nbytes // entry.shape[0] if entry.shape[0] else 0
    return tuple(_cut(entry.spans, start * row, stop * row))


def in_order(entry: StoredTensor, ranges: Iterable[tuple[int, int]]) -> StoredTensor:
    """`entry` with its rows in the order of `ranges` (start, stop), which cover each row once."""
    spans = _joined(span for start, stop in ranges for span in rows_of(entry, start, stop))
    return StoredTensor(entry.name, entry.dtype, entry.shape, spans)


def halves_swapped(entry: StoredTensor) -> StoredTensor:
    """The lower half of the rows first; their number is even."""
    half = entry.shape[0] // 2
    return in_order(entry, ((half, 2 * half), (0, half)))


def stacked(name: str, entries: Sequence[StoredTensor]) -> StoredTensor:
    """One tensor under the other; dtypes and all dimensions but the first agree."""
    rows = sum(entry.shape[0] for entry in entries)
    spans = _joined(span for entry in entries for span in entry.spans)
    return StoredTensor(name, entries[0].dtype, (rows, *entries[0].shape[1:]), spans)


def _cut(spans: Iterable[Span], start: int, stop: int) -> Iterator[Span]:
    """Bytes [start, stop) of what `spans` spell out."""
    at = 0
    for span in spans:
        low, high = max(start, at), min(stop, at + span.nbytes)
        if low < high:
            yield Span(span.part, span.start + low - at, span.start + high - at)
        at += span.nbytes


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Neighbours that follow each other in one file become one, so that they are one read."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].part == span.part and found[-1].stop == span.start:
            found[-1] = Span(span.part, found[-1].start, span.stop)
        else:
            found.append(span)
    return tuple(found)

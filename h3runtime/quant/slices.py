"""Rows to work on at a time, so that decoding a layer of any size needs a bounded FP32 intermediate.

Fed by and read by the modules of this package that pack or unpack a format; it touches no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

SLICE_ELEMENTS = 1 << 23
"""Weights at a time: 32 MiB in FP32, and at most two such intermediates are alive, whatever the layer."""


def row_slices(rows: int, columns: int, multiple: int = 1) -> Iterator[slice]:
    """Slices that cover `rows` in order, of equal lengths that are multiples of `multiple`, but for the last.

    As equal as can be: a matrix product over a handful of rows may add in another order than over many.
    """
    most = max(SLICE_ELEMENTS // max(columns, 1) // multiple, 1) * multiple
    count = max(-(-rows // most), 1)
    step = round_up(max(-(-rows // count), 1), multiple)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def round_up(value: int, to: int) -> int:
    return -(-value // to) * to

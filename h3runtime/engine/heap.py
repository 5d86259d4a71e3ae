"""glibc's heap, in which the CPU's tensors lie: what it keeps of freed memory, and in what pieces. Elsewhere: nothing.

Left alone it raises, as large blocks are freed, the size from which one is mapped by itself up to 32 MiB;
from then on the sounds and pictures of a request leave holes between each other that the next ones can't use, and a
process takes up to a third more than its tensors do (LOG.md). Fed by `resident`, `device` and `faults`.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import ClassVar

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Both malloc.h of glibc."""
MAPPED_BYTES = 16 * 2**20
"""Blocks from here on are mapped by themselves and given back at once. A clip of five seconds takes up to a third
longer, for pages that the system hands out anew; from 1 MiB on it took 2 to 5 times as long (LOG.md)."""
KEPT_BYTES = 32 * 2**20
"""Free at the end of the heap, and kept there until `trim`. To fix the other threshold fixes this one at 128 KiB, and
whether a block that is freed and wanted again lies at the end is chance: of 12 forwards at 570 rows some processes had
4,000 pages handed out anew, others 63,000, each for a microsecond and a half (LOG.md)."""
LEFT_BYTES = 64 * 2**20
"""Free between two stages of a request, and left for the next: a seventh of what the embedded model's process takes. To
give back the sound's 50 MiB while pictures are decoded took 5 ms and then 8,000 pages anew (LOG.md)."""


def map_large_blocks() -> None:
    """For the rest of this process."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim(above: int = 0) -> None:
    """What has been freed goes back to the system; glibc keeps it otherwise, in pieces too small for the next job.
    above: leave the heap as it is while fewer bytes are free in it, if it can tell."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        if _free_bytes(library) >= above:
            library.malloc_trim(0)


class _Counts(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def _free_bytes(library: ctypes.CDLL) -> int:
    """Of a glibc before 2.33, which can't tell: more than anybody asks for."""
    try:
        count = library.mallinfo2
    except AttributeError:
        return sys.maxsize
    count.restype = _Counts
    return int(count().fordblks)

"""glibc's heap, in which the CPU's tensors lie: what it keeps of freed memory, and in what pieces. Elsewhere: nothing.

Left alone it raises, as large blocks are freed, the size from which one is mapped by itself up to 32 MiB;
from then on the sounds and pictures of a request leave holes between each other that the next ones can't use, and a
process takes up to a third more than its tensors do (LOG.md). Fed by `resident`, `device` and `faults`.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

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


def map_large_blocks() -> None:
    """For the rest of this process."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim() -> None:
    """What has been freed goes back to the system; glibc keeps it otherwise, in pieces too small for the next job."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)

"""How much of a file the kernel keeps in memory, asked by mincore(2). Only here is a file ever mapped."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path


def cached_pages(path: Path) -> tuple[int, int]:
    """(pages in the page cache, pages in all)."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    # A private mapping that could be written to, since ctypes takes the address of nothing else.
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        view = (ctypes.c_char * size).from_buffer(mapped)
        found = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        if libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), found) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        del view
    return sum(page & 1 for page in found), len(found)


def can_drop(folder: Path) -> bool:
    """False on a file system that has no disk below it, such as tmpfs: its pages are the file."""
    probe = folder / "probe"
    with probe.open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    kept, _ = cached_pages(probe)
    probe.unlink()
    return kept == 0

"""How many threads an engine may use on this machine."""

from __future__ import annotations

import os


def engine_threads() -> int:
    """Cores that this process may use, less one where there are two: for the API, or for ffmpeg (architecture.md)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)

"""How many threads an engine may use on this machine."""

from __future__ import annotations

import os


def engine_threads() -> int:
    """Cores that this process may use, less one where there are two: for the API, or for ffmpeg (architecture.md)."""
    return max(1, usable_cores() - 1)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

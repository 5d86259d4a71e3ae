"""Times as prompts write them: `MM:SS.mmm` from the beginning of the clip (conditioning contract §7.2)."""

from __future__ import annotations

from typing import Final

FAR: Final = 1e9
"""Seconds, beyond the end of any clip: a later time counts as this one, since 1e308 s are no number of milliseconds."""


def milliseconds(seconds: float) -> int:
    """What `written` can tell apart: two times that round to the same millisecond are one."""
    return round(min(seconds, FAR) * 1000)


def written(seconds: float) -> str:
    """`00:02.500` for 2.5."""
    minutes, rest = divmod(milliseconds(seconds), 60_000)
    return f"{minutes:02d}:{rest // 1000:02d}.{rest % 1000:03d}"

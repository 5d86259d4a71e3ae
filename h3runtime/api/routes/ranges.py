"""Which ranges of a clip a request asks for, by RFC 9110 §14: what the framework is left to answer.

It refuses units that it doesn't know and sets of which one range is beyond the end, and gives parts to HEAD; the RFC
has such headers, ranges and methods ignored. Read by `content`.
"""

from __future__ import annotations

import re

UNIT = "bytes"
RANGE = re.compile(r"\s*(?:(\d+)-(\d*)|-(\d+))\s*", re.ASCII)


def wanted(method: str, header: str | None, size: int) -> str | None:
    """The header without the ranges that hold nothing of `size` bytes, unless all do: then as it came, for 416. None:
    the whole file. One of wrong syntax comes back too, to be refused."""
    unit, _, ranges = (header or "").partition("=")
    if method != "GET" or unit.strip().lower() != UNIT:
        return None
    parts = [part for part in ranges.split(",") if part.strip()]
    if any(RANGE.fullmatch(part) is None for part in parts):
        return header
    held = [part for part in parts if _holds(part, size)]
    return f"{UNIT}={','.join(held)}" if held else header


def _holds(part: str, size: int) -> bool:
    found = RANGE.fullmatch(part)
    if found is None:
        return False
    first, _, last = found.groups()
    return int(last) > 0 if first is None else int(first) < size

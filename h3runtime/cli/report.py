"""What a command says when it ends: one compact JSON line on stdout, or at most two lines on stderr and exit code 1."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from h3runtime.errors import H3Error, Offence

SHOWN = 6
"""Offences told in full; the rest are counted."""


def print_result(facts: Mapping[str, Any], *, quiet: bool) -> None:
    if not quiet:
        print(json.dumps(facts, separators=(",", ":"), ensure_ascii=False), flush=True)


def print_error(error: H3Error) -> None:
    """`error: what; and what`, then the legal values where there are any. Two lines at most, no traceback."""
    print(f"error: {_one_line(error.message)}", file=sys.stderr)
    legal = [_legal(o) for o in error.offences if o.legal]
    if legal:
        more = f"; and {len(legal) - SHOWN} more" if len(legal) > SHOWN else ""
        print("legal: " + "; ".join(legal[:SHOWN]) + more, file=sys.stderr)


def _legal(offence: Offence) -> str:
    return f"{offence.field}: {_one_line(offence.legal)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())

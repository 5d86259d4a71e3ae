"""What a command says when it ends: one compact JSON line on stdout, or at most two lines on stderr and exit code 1."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from h3runtime.errors import H3Error, Offence

SHOWN = 6
"""Offences told in full; the rest are counted."""


def print_result(facts: Mapping[str, Any], *, quiet: bool) -> None:
    if not quiet:
        print(json_text(facts, sys.stdout.encoding, separators=(",", ":")), flush=True)


def json_text(facts: Mapping[str, Any], encoding: str | None = None, **layout: Any) -> str:
    """JSON that `encoding` (UTF-8 if None) can hold: in ASCII if its characters can't be had as they are, such as those
    of a file's name that isn't UTF-8."""
    text = json.dumps(facts, ensure_ascii=False, **layout)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(facts, **layout)
    return text


def print_error(error: H3Error) -> None:
    """`error: what; and what`, then the legal values where there are any. Two lines at most, no traceback."""
    say(f"error: {_one_line(error.message)}")
    legal = [_legal(o) for o in error.offences if o.legal]
    if legal:
        more = f"; and {len(legal) - SHOWN} more" if len(legal) > SHOWN else ""
        say("legal: " + "; ".join(legal[:SHOWN]) + more)


def print_os_error(error: OSError) -> None:
    """The system's word, and the file if it is about one. Nothing if it is stdout, which nobody reads any more."""
    if isinstance(error, BrokenPipeError):
        # Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    about = f"{error.filename}: " if error.filename is not None else ""
    say(f"error: {_one_line(about + (error.strerror or str(error)))}")


def say(line: str) -> None:
    """A line on stderr. A stderr that takes none is no reason to end."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _legal(offence: Offence) -> str:
    return f"{offence.field}: {_one_line(offence.legal)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())

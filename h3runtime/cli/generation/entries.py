"""What `generate` was asked for, as raw requests: one from flags or from a file, or a list of them, which is a chain.

A request of the file is one of `POST /generate`. Flags are its defaults: what it says itself wins, and a flag that
would contradict what it says is left out. Nothing else is judged here. Fed by the command line; `judging` and
`chain_plan` read it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h3runtime.api.body import parse_json
from h3runtime.cli.generation.flags import request_of
from h3runtime.cli.generation.links import WHOLE
from h3runtime.errors import MalformedRequest, Offence, invalid

YIELDS: Mapping[str, frozenset[str]] = {
    "frames": frozenset({"seconds"}),
    "seconds": frozenset({"frames"}),
    "width": frozenset({"aspect_ratio", "short_edge"}),
    "height": frozenset({"aspect_ratio", "short_edge"}),
    "aspect_ratio": frozenset({"width", "height"}),
}
"""Field of a request -> flags that say the same in another way, and so don't count beside it."""
BEGINNINGS = frozenset({"first_frame", "continue_from"})
MAX_ENTRIES = 10_000
"""Clips of a chain: its scratch files are numbered with four digits."""


@dataclass(frozen=True, slots=True)
class Asked:
    """requests: raw, defaults filled in. is_chain: they came as a list. folder: where their relative paths begin."""

    requests: tuple[dict[str, Any], ...]
    is_chain: bool
    folder: Path


def asked_of(arguments: argparse.Namespace) -> Asked:
    """`MalformedRequest` for a file that is not JSON, `InvalidRequest` for other JSON than requests, `OSError`."""
    defaults = request_of(arguments)
    file: Path | None = getattr(arguments, "request", None)
    if file is None:
        return Asked((defaults,), False, Path.cwd())
    folder = file.absolute().parent
    found = parse_json(file.read_bytes(), file.name)
    if isinstance(found, dict):
        return Asked((merged(found, defaults),), False, folder)
    if not isinstance(found, list):
        raise MalformedRequest(f"{file.name} holds neither a request nor a list of them")
    _judge_list(file.name, found)
    # What flags say of the file that is made is about the whole, and what they begin with is where the chain begins.
    first = {name: value for name, value in defaults.items() if name not in (*WHOLE, "n")}
    others = {name: value for name, value in first.items() if name not in BEGINNINGS}
    each = [first, *[others] * (len(found) - 1)]
    return Asked(tuple(merged(*pair) for pair in zip(found, each, strict=True)), True, folder)


def merged(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A request over the flags. Of `format` each part counts by itself."""
    yielding = frozenset().union(*(YIELDS.get(name, frozenset()) for name in request))
    whole = {name: value for name, value in defaults.items() if name not in yielding} | dict(request)
    forms = defaults.get("format"), request.get("format")
    if all(isinstance(form, dict) for form in forms):
        whole["format"] = {**forms[0], **forms[1]}  # type: ignore[dict-item]
    return whole


def _judge_list(name: str, found: list[Any]) -> None:
    legal = f"1..{MAX_ENTRIES} requests, each an object"
    if not 1 <= len(found) <= MAX_ENTRIES:
        raise invalid([Offence(name, f"lists {len(found)} requests", legal)])
    wrong = [
        Offence(f"[{index}]", "is not an object", legal) for index, item in enumerate(found) if type(item) is not dict
    ]
    if wrong:
        raise invalid(wrong)

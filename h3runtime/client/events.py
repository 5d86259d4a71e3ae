"""The lines of an event stream (WHATWG server-sent events) -> events of a job. Fed by `watching`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})
"""States after which nothing more happens (service-contract, "The answer")."""


@dataclass(frozen=True, slots=True)
class Event:
    """kind: `state` (data has `status`) or `progress` (`stage, step, steps, fraction, eta_seconds`). id: for resuming;
    None of one that was made up from a look at the job."""

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None

    @property
    def is_end(self) -> bool:
        return self.kind == "state" and self.data.get("status") in ENDED


class EventReader:
    """Keeps what outlives one event: the id to resume from, and how long to wait before that (`retry`, seconds)."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry: float | None = None

    def read(self, lines: Iterable[bytes]) -> Iterator[Event]:
        """lines: with or without their ends. What the stream breaks off in the middle of is dropped, as the standard
        has it; so is an event whose data is no JSON object."""
        kind, data = "", list[str]()
        for raw in lines:
            name, value = _field(raw)
            if name == "":
                event = self._event(kind, data)
                kind, data = "", []
                if event is not None:
                    yield event
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id" and "\0" not in value:
                self.last_id = value
            elif name == "retry" and value.isdecimal():
                self.retry = int(value) / 1000

    def _event(self, kind: str, data: list[str]) -> Event | None:
        try:
            told = json.loads("\n".join(data))
        except ValueError:
            return None
        return Event(kind or "message", told, self.last_id) if isinstance(told, dict) else None


def _field(raw: bytes) -> tuple[str, str]:
    """Name and value of a line; no name for an empty one, `:` for a comment."""
    line = raw.decode("utf-8", "replace").rstrip("\r\n")
    if line.startswith(":"):
        return ":", ""
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")

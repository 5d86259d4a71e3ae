"""The engine as seen from outside: one frozen value that `supervisor` replaces whole and `api` reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from h3runtime.core import EngineFacts, LoadProgress


class EngineStatus(StrEnum):
    """What `/ready` says, but for a full disk, which is no matter of the engine."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    RESTARTING = "restarting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class EngineState:
    """The engine as seen from outside.

    facts: of the last successful load. reason: why it isn't ready. loading: how far, while it loads. warnings: what
    happened to it since the server began.
    """

    status: EngineStatus = EngineStatus.LOADING
    stage: str = "starting"
    fraction: float = 0.0
    reason: str = ""
    facts: EngineFacts | None = None
    cold_start_seconds: float | None = None
    restarts: int = 0
    loading: LoadProgress | None = None
    warnings: tuple[str, ...] = ()

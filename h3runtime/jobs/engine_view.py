"""How `EngineState` comes about: what the supervisor hears of its engine, as the one value that others read.

Changed by the supervisor's thread, but for the drain; read from any thread without a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from h3runtime.core import EngineFacts, Progress
from h3runtime.errors import H3Error
from h3runtime.jobs.engine_state import EngineState, EngineStatus

log = structlog.get_logger("h3runtime.supervisor")


class EngineView:
    """is_draining: then neither readiness nor a restart takes the place of that in the status."""

    def __init__(self, is_draining: Callable[[], bool]) -> None:
        self.state = EngineState()
        self._is_draining = is_draining
        self._changing = threading.Lock()
        self._began = time.monotonic()

    @property
    def is_dead(self) -> bool:
        return self.state.status is EngineStatus.DEAD

    def drain(self) -> None:
        self._set(status=EngineStatus.DRAINING, reason="the server is shutting down")

    def die(self, reason: str) -> None:
        """For good."""
        log.error("engine_dead", reason=reason)
        self._set(status=EngineStatus.DEAD, reason=reason)

    def restart(self, reason: str) -> None:
        self._set(stage="starting", fraction=0.0, restarts=self.state.restarts + 1, loading=None)
        self._set_unless_draining(EngineStatus.RESTARTING, reason)

    def load(self, progress: Progress) -> None:
        """It gets on with loading."""
        fraction = max(progress.fraction, self.state.fraction)
        self._set(stage=progress.stage, fraction=fraction, loading=progress.loading)
        if self.state.status is EngineStatus.LOADING and progress.stage == "warming":
            self._set(status=EngineStatus.WARMING)

    def loaded(self, facts: EngineFacts) -> None:
        cold = self.state.cold_start_seconds or time.monotonic() - self._began
        self._tell_change(facts)
        self._set(facts=facts, stage="ready", fraction=1.0, cold_start_seconds=cold, loading=None)
        self._set_unless_draining(EngineStatus.READY, "")
        told = {"device": facts.device, "cold_start_seconds": cold, "checkpoint": facts.checkpoint}
        log.info("engine_ready", **told, **facts.loads())

    def _tell_change(self, facts: EngineFacts) -> None:
        """Files may be replaced while the server runs; a new engine process reads the new ones."""
        before = self.state.facts.checkpoint if self.state.facts else facts.checkpoint
        if before != facts.checkpoint:
            log.warning("checkpoint_changed", before=before, now=facts.checkpoint)
            told = f"the checkpoint changed while the server ran: it was {before}, it is {facts.checkpoint}"
            self._set(warnings=(told,))

    def _set_unless_draining(self, status: EngineStatus, reason: str) -> None:
        if not self._is_draining():
            self._set(status=status, reason=reason)

    def _set(self, **changes: Any) -> None:
        with self._changing:
            self.state = replace(self.state, **changes)


def reason_of(error: H3Error) -> str:
    """The message, with every offender that it doesn't name itself: `/ready` must tell which tensors are at fault."""
    said = error.message
    told = [f"{o.field}: {o.message}" for o in error.offences if o.field not in said and o.message not in said]
    return "; ".join([error.message, *told])

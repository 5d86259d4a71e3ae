"""One engine process and our end of its pipe: start it, exchange messages, say how it ended, end it.

It knows no jobs and no deadlines. Used by `supervisor` alone, from its own thread, but for `kill`. What runs inside is
`child`; the engine is named by a dotted string, so this side never imports it (architecture.md, The seams).
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from h3runtime.core import GenerateSpec
from h3runtime.errors import EngineDead, OutOfMemory
from h3runtime.jobs.child import run_engine
from h3runtime.jobs.messages import Compute, FromEngine, Leave, ToEngine
from h3runtime.jobs.processes import end_descendants, end_family, oom_kills

log = structlog.get_logger("h3runtime.engine_process")


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """`factory(*arguments)` in a fresh interpreter makes a `core.Engine`. factory: `package.module:function`. log_file:
    gets its log lines beside standard output."""

    factory: str
    arguments: tuple[Any, ...] = ()
    log_file: Path | None = None


class EngineProcess:
    """One spawned interpreter and our end of its pipe.

    loaded: it has said so. heard: when it last said anything. moved: when its loading last got on; both monotonic.
    """

    def __init__(self, recipe: EngineRecipe) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, recipe.factory, recipe.arguments, recipe.log_file)
        # No daemon: an engine may start processes of its own. It ends when the pipe closes, so nothing is left behind.
        self._process = context.Process(target=run_engine, args=arguments, name="h3runtime-engine")
        self._process.start()
        theirs.close()
        self.loaded = False
        self.heard = self.moved = time.monotonic()
        self._kills_before = oom_kills()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def compute(self, spec: GenerateSpec, request_id: str = "") -> None:
        """Hand it a job. Kills by the kernel before that aren't this job's end."""
        self._kills_before = oom_kills()
        self.send(Compute(spec, request_id))

    def send(self, message: ToEngine) -> None:
        # A process that has just died says so on the reading side.
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> FromEngine | None:
        """The next message; None if the process is gone, or sent what can't be read."""
        try:
            message: FromEngine = self.connection.recv()
        except Exception as error:
            if not isinstance(error, EOFError | ConnectionError):
                log.error("engine_message_unreadable", exc_info=error)
            return None
        self.heard = time.monotonic()
        return message

    def is_silent_for_good(self) -> bool:
        """Ended, with nothing left to read. The pipe says so too, unless a child of the dead still holds it."""
        return self._process.exitcode is not None and not self.connection.poll()

    def last_word(self) -> EngineDead | OutOfMemory:
        """How it ended. `OutOfMemory` where the kernel has ended processes for that since the job began."""
        self._process.join(1.0)
        code = self._process.exitcode
        if code == -signal.SIGKILL and oom_kills() > self._kills_before:
            return OutOfMemory("the engine process was killed by the kernel: the host's memory is full")
        return EngineDead(f"the engine process {_how_it_ended(code)}")

    def leave(self, seconds: float) -> None:
        """Ask it to close, wait so long, then make sure that neither it nor anything it started is left."""
        if seconds > 0:
            self.send(Leave())
            self._process.join(seconds)
        self.kill()
        self._process.join(2.0)
        self.connection.close()

    def kill(self) -> None:
        if self._process.exitcode is None:
            end_family(self.pid)
        else:
            # Reaped, so its number may be another program's; what it started still carries it as the session's.
            end_descendants(self.pid)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"

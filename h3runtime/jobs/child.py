"""What runs inside the engine process: one engine, one job at a time, and a thread that listens meanwhile.

The supervisor starts `run_engine` in a fresh interpreter; the engine comes from a dotted name, so that nobody on the
other side imports it. Four threads: this one computes, one reads the pipe (so that a stop arrives during a step), one
says what requests would take, one beats. When the pipe closes, the server is gone however it ended, and this process
ends with all that it started.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from h3runtime.core import Engine, Estimate, Progress
from h3runtime.errors import H3Error, InternalError, JobDiskFull, JobError, OutOfMemory
from h3runtime.jobs.messages import (
    Advanced,
    Beat,
    Compute,
    Failed,
    FromEngine,
    Leave,
    Loaded,
    LoadFailed,
    Made,
    Stop,
    Weigh,
    Weighed,
)
from h3runtime.jobs.processes import end_descendants
from h3runtime.media.delivery import FULL
from h3runtime.observe import logs
from h3runtime.observe.importing import uncollected
from h3runtime.observe.private import keep_private, privacy
from h3runtime.observe.spans import span

BEAT_SECONDS = 1.0

log = structlog.get_logger("h3runtime.engine")


def run_engine(connection: Connection, factory: str, arguments: tuple[Any, ...], log_file: Path | None = None) -> None:
    """Load, then serve jobs until told to leave. Never returns an error: it is sent."""
    _stand_alone()
    _configure_logs(log_file)
    wire = _Wire(connection)
    threading.Thread(target=wire.listen, name="listen", daemon=True).start()
    threading.Thread(target=wire.beat, name="beat", daemon=True).start()
    try:
        engine = _load(factory, arguments, wire)
    except Exception as error:
        wire.send(LoadFailed(_as_load_error(error)))
        return
    threading.Thread(target=_weigh, args=(engine, wire), name="weigh", daemon=True).start()
    try:
        while (work := wire.next_job()) is not None:
            wire.send(_compute(engine, work, wire))
    finally:
        engine.close()


def _stand_alone() -> None:
    """Lead a session, so that one signal reaches the whole family and a terminal's Ctrl-C reaches the server alone."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _configure_logs(file: Path | None) -> None:
    """To where the server's go; it has opened the file before, so what keeps this process from it will pass."""
    try:
        logs.configure("stdout", file=file)
    except OSError as error:
        logs.configure("stdout")
        log.warning("log_file_unusable", reason=error.strerror)


def _load(factory: str, arguments: tuple[Any, ...], wire: _Wire) -> Engine:
    module, _, function = factory.partition(":")
    with uncollected():
        create: Callable[..., Engine] = getattr(importlib.import_module(module), function)
    engine = create(*arguments)
    engine.load(lambda progress: wire.send(Advanced(None, progress)))
    wire.send(Loaded(engine.facts()))
    return engine


def _compute(engine: Engine, work: Compute, wire: _Wire) -> Made | Failed:
    job_id = work.spec.job_id
    named = {"job_id": job_id, "request_id": work.request_id}

    def on_progress(progress: Progress) -> None:
        wire.send(Advanced(job_id, progress))

    with structlog.contextvars.bound_contextvars(**named), privacy():
        keep_private(work.spec.prompt)
        try:
            with span("job", task=str(work.spec.task), **named):
                return Made(job_id, engine.generate(work.spec, on_progress, lambda: wire.is_stopped(job_id)))
        except Exception as error:
            return Failed(job_id, _as_job_error(error))


def _weigh(engine: Engine, wire: _Wire) -> None:
    """Beside the computing thread for ever: a request that is judged doesn't wait for the clip of another."""
    while True:
        asked = wire.next_question()
        wire.send(Weighed(asked.number, _estimate(engine, asked)))


def _estimate(engine: Engine, asked: Weigh) -> Estimate | H3Error:
    with privacy():
        keep_private(asked.spec.prompt)
        try:
            return engine.estimate(asked.spec)
        except H3Error as error:
            return error
        except Exception as error:
            log.error("estimate_bug", exc_info=error)
            return InternalError("the request could not be estimated")


def _as_job_error(error: Exception) -> H3Error:
    """What isn't ours is told without its text, which may hold anything; the log has it whole."""
    if isinstance(error, H3Error):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory("the host's memory is full")
    if isinstance(error, OSError) and error.errno in FULL:
        return JobDiskFull("the disk is full")
    log.error("engine_bug", exc_info=error)
    return JobError("the engine met an internal error")


def _as_load_error(error: Exception) -> H3Error:
    """`/ready` shows it: an OSError's own text would name a file of the server."""
    if isinstance(error, H3Error):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory("the host's memory is full", stage="loading")
    log.error("engine_load_bug", exc_info=error)
    why = error.strerror if isinstance(error, OSError) else str(error)
    return InternalError(f"the engine could not start: {type(error).__name__}: {why}")


class _Wire:
    """The pipe as the three threads share it: whole messages out, jobs in, stops remembered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._work: queue.SimpleQueue[Compute | None] = queue.SimpleQueue()
        self._questions: queue.SimpleQueue[Weigh] = queue.SimpleQueue()
        self._stopped: str | None = None

    def send(self, message: FromEngine) -> None:
        with self._sending:
            try:
                self._connection.send(message)
            except OSError:
                _end_self()

    def next_job(self) -> Compute | None:
        return self._work.get()

    def next_question(self) -> Weigh:
        return self._questions.get()

    def is_stopped(self, job_id: str) -> bool:
        return self._stopped == job_id

    def beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_SECONDS):
            self.send(Beat())

    def listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                _end_self()
            match message:
                case Compute():
                    self._work.put(message)
                case Weigh():
                    self._questions.put(message)
                case Stop(job_id):
                    self._stopped = job_id
                case Leave():
                    self._work.put(None)


def _end_self() -> None:
    """At once, from any thread: there is nobody left to tell."""
    end_descendants(os.getpid())
    os._exit(1)

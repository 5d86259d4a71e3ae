"""The engine process from outside: keep one alive, feed it one job at a time, judge its health.

One thread owns the pipe and everything about the process; other threads leave a wish (stop, drain) and ring. `api`
reads `state`, one frozen value that is replaced whole. Policy:

    silence    a process whose heartbeat stops, or a stage without progress within its limit, is killed with all that
               it started; the job fails with `engine_dead` or `timeout`
    death      the running job fails with `engine_dead`, or `out_of_memory` if the kernel did it for want of memory; the
               process is started again while the budget lasts, and jobs that wait stay in line; beyond the budget, or
               when it can't load what it was given, `dead` for good, and they fail too
    cancel     the engine is asked, and is killed only if it is deaf: after several of the job's own steps
    drain      no new jobs; the running one may finish within its time, is then asked to stop, and at last killed; it
               goes back into the line, where the next server finds it

The numbers are `limits`'s, the process itself is `engine_process`'s.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import structlog

from h3runtime.core import EngineFacts, Estimate, GenerateSpec
from h3runtime.errors import EngineDead, H3Error, JobCancelled, JobTimeout, Loading, NotReady, OutOfMemory
from h3runtime.jobs.engine_process import EngineProcess, EngineRecipe
from h3runtime.jobs.engine_state import EngineState
from h3runtime.jobs.engine_view import EngineView, reason_of
from h3runtime.jobs.in_hand import InHand, left_behind
from h3runtime.jobs.limits import Deaths, Limits
from h3runtime.jobs.messages import (
    Advanced,
    Failed,
    FromEngine,
    Loaded,
    LoadFailed,
    Made,
    Stop,
    Weigh,
    Weighed,
)
from h3runtime.jobs.outputs import staged
from h3runtime.jobs.questions import Questions
from h3runtime.jobs.queue import JobQueue

__all__ = ["Limits", "Supervisor"]

log = structlog.get_logger("h3runtime.supervisor")

LOOK_SECONDS = 0.25
"""How often deadlines are looked at when nothing arrives."""


class Supervisor:
    """Keeps one engine process alive and busy. `start` returns at once; `drain` and `close` wait."""

    def __init__(self, recipe: EngineRecipe, queue: JobQueue, limits: Limits) -> None:
        self._recipe = recipe
        self._queue = queue
        self._limits = limits
        self._view = EngineView(lambda: queue.closed)
        self._ears, self._bell = multiprocessing.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._deaths = Deaths(limits)
        self._leaving = threading.Event()
        self._job = InHand(limits)
        self._questions = Questions()
        self._jobs_since_start = 0
        self._process: EngineProcess | None = None
        self.on_loaded: Callable[[EngineFacts], None] = lambda _: None
        queue.on_waiting = self.ring
        queue.on_stop = self.cancel

    @property
    def state(self) -> EngineState:
        return self._view.state

    @property
    def pid(self) -> int | None:
        """Of the engine process; None while there is none."""
        process = self._process
        return process.pid if process else None

    def start(self) -> None:
        self._queue.start()
        self._thread.start()

    def ring(self) -> None:
        """Wake the supervisor's thread: something has changed. From any thread."""
        with suppress(OSError):
            self._bell.send_bytes(b"!")

    def cancel(self, job_id: str) -> None:
        """A waiting job ends at once; a running one at its next step. Of no effect after the end."""
        if self._queue.cancel(job_id):
            self._wish_stop(job_id, JobCancelled("cancelled by request"))

    def estimate(self, spec: GenerateSpec, seconds: float = 10.0) -> Estimate:
        """What the request would take, asked of the engine; from any thread, also while it computes. Loading and
        NotReady where there is none to ask or no answer in time, and what the engine says is wrong with the request."""
        process = self._process
        if self._view.is_dead or self._leaving.is_set():
            raise NotReady("the engine is gone; /ready says why")
        if process is None or not process.loaded:
            raise Loading("the engine is being loaded; try again in a moment")
        return self._questions.ask(spec, seconds, self.ring)

    def drain(self, seconds: float) -> None:
        """Refuse new work, give the running job `seconds` to finish, then stop it and end the process."""
        self._view.drain()
        self._queue.close()
        if not self._queue.wait_until_idle(seconds):
            if (running := self._queue.running) is not None:
                self._wish_stop(running, left_behind())
            self._queue.wait_until_idle(self._limits.stop_grace + 2 * LOOK_SECONDS)
        self.close()

    def close(self) -> None:
        """End the process, gently if it listens. Waits until it is gone."""
        self._leaving.set()
        self.ring()
        if self._thread.is_alive():
            self._thread.join(self._limits.leave_grace + 2.0)

    def kill(self) -> None:
        """End the process now, from any thread or a signal handler."""
        self._leaving.set()
        if (process := self._process) is not None:
            process.kill()

    # Everything below runs in the supervisor's own thread.

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                self._live_or_die()
            if (running := self._queue.running) is not None:
                self._queue.failed(running, left_behind())
        finally:
            self._queue.stop()

    def _live_or_die(self) -> None:
        """Our own bug must not end this thread: nobody would hear that it did, and all jobs would wait for ever."""
        try:
            if self._view.is_dead:
                self._serve_the_dead()
            else:
                self._live_once()
        except Exception as error:
            log.error("supervisor_bug", exc_info=error)
            if (process := self._process) is not None:
                process.kill()
            if not self._view.is_dead:
                self._view.die("the supervisor met an internal error")

    def _live_once(self) -> None:
        """One process from its start to its end, whatever that is."""
        try:
            process = self._process = EngineProcess(self._recipe)
        except Exception as error:
            log.error("engine_not_started", exc_info=error)
            self._bury(EngineDead(f"the engine process could not be started: {type(error).__name__}"))
            return
        try:
            why = self._converse(process)
        except Exception as error:
            # Our own bug must not leave the queue without an owner.
            log.error("supervisor_bug", exc_info=error)
            why = EngineDead("the supervisor met an internal error")
        listens = self._leaving.is_set() and process.loaded and self._job.job_id is None
        process.leave(self._limits.leave_grace if listens else 0.0)
        # Reaped: its number may be another program's by now, and `kill` must not find it here.
        self._process = None
        self._questions.fail(Loading("the engine process has ended; try again in a moment"))
        if why is not None:
            self._bury(why)

    def _serve_the_dead(self) -> None:
        """A dead engine's server stays up to say why; whatever slips into the queue fails at once. What an earlier
        server left waits for one whose engine can be loaded, if this one's never could."""
        was_loaded = self.state.facts is not None
        while not self._leaving.is_set():
            self._queue.fail_waiting(EngineDead(f"the engine is dead: {self.state.reason}"), inherited=was_loaded)
            self._sleep([], None)

    def _converse(self, process: EngineProcess) -> H3Error | None:
        """Until the process is of no more use. Returns why, or None for a wanted end or one already dealt with."""
        while not self._leaving.is_set():
            self._hand_out(process)
            if self._sleep([process.connection], LOOK_SECONDS):
                message = process.receive()
                if message is None:
                    return process.last_word()
                if (end := self._hear(message, process)) is not None:
                    return end
            elif process.is_silent_for_good():
                return process.last_word()
            if (late := self._overdue(process)) is not None:
                return late
        return None

    def _sleep(self, connections: list[Connection], seconds: float | None) -> bool:
        """True if a message waits on one of `connections`; the bell only wakes."""
        ready = wait([self._ears, *connections], seconds)
        if self._ears in ready:
            while self._ears.poll():
                self._ears.recv_bytes()
        return any(connection in ready for connection in connections)

    def _hand_out(self, process: EngineProcess) -> None:
        for number, spec in self._questions.unsent() if process.loaded else ():
            process.send(Weigh(number, spec))
        if (unwanted := self._job.stop_due()) is not None:
            process.send(Stop(unwanted))
        facts = self.state.facts
        if self._job.job_id is not None or not process.loaded or facts is None:
            return
        if (taken := self._queue.take(facts, first=self._jobs_since_start == 0)) is not None:
            self._jobs_since_start += 1
            self._job.begin(taken.id)
            process.compute(staged(taken.spec), taken.order.request_id)

    def _hear(self, message: FromEngine, process: EngineProcess) -> H3Error | None:
        """React to one message. Returns an error if the process must go."""
        match message:
            case Advanced(None, progress):
                process.moved = time.monotonic()
                self._view.load(progress)
            case Advanced(job_id, progress) if job_id is not None and job_id == self._job.job_id:
                self._job.advance(progress)
                self._queue.progressed(job_id, progress)
            case Loaded(facts):
                process.loaded = True
                self._loaded(facts)
            case LoadFailed(error):
                if not isinstance(error, EngineDead | OutOfMemory):
                    self._view.die(reason_of(error))
                return error
            case Weighed(number, answer):
                self._questions.settle(number, answer)
            case Made(job_id, clip):
                self._queue.succeeded(job_id, clip)
                self._job.done()
            case Failed(job_id, error):
                if isinstance(error, EngineDead):
                    return error
                self._queue.failed(job_id, self._job.end_told(job_id, error))
                self._job.done()
        return None

    def _loaded(self, facts: EngineFacts) -> None:
        self._jobs_since_start = 0
        # Whoever sees that it is ready may ask at once what it would take.
        self._queue.engine_loaded(facts)
        self._view.loaded(facts)
        self.on_loaded(facts)

    def _overdue(self, process: EngineProcess) -> H3Error | None:
        now = time.monotonic()
        if (late := self._job.overdue()) is not None:
            return late
        if (limit := self._limit_of_loading(process)) is not None and now - process.moved > limit:
            stage = self.state.stage
            return JobTimeout(f"the stage {stage} made no progress for {limit:g} s", stage=stage)
        if now - process.heard > self._limits.heartbeat:
            return EngineDead(f"the engine process gave no sign of life for {self._limits.heartbeat:g} s")
        return None

    def _limit_of_loading(self, process: EngineProcess) -> float | None:
        return None if process.loaded else self._limits.stages.get(self.state.stage)

    def _bury(self, why: H3Error) -> None:
        """Settle the running job, then decide whether another process may be started."""
        log.error("engine_died", reason=why.message, code=why.code)
        # The queue's word counts: a bug may have come between its job and ours.
        if (lost := self._queue.running) is not None:
            self._queue.failed(lost, self._job.end_lost(lost, why, is_leaving=self._leaving.is_set()))
        self._job.done()
        if self._view.is_dead or self._leaving.is_set():
            return
        if beyond := self._deaths.add():
            self._view.die(f"{why.message}; {beyond}")
            return
        self._view.restart(why.message)

    def _wish_stop(self, job_id: str, wish: H3Error) -> None:
        """From any thread."""
        self._job.wish_stop(job_id, wish)
        self.ring()

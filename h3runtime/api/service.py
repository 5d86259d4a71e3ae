"""One running service behind its HTTP face: the queue, the engine's supervisor, admission, metrics, folders.

`serve` opens one for the life of the process, tests open as many as they like with a fake engine. `app` asks it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from ulid import ULID

from h3runtime import __version__
from h3runtime.api.admission import Admission
from h3runtime.api.answers import output_seconds
from h3runtime.api.body import Delivery, read_delivery
from h3runtime.core import EngineFacts
from h3runtime.errors import DiskFull, Draining, Loading, NotReady
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.jobs.engine_state import EngineState, EngineStatus
from h3runtime.jobs.files import Folders
from h3runtime.jobs.queue import JobQueue, job_timings
from h3runtime.jobs.supervisor import Limits, Supervisor
from h3runtime.jobs.table import Job, JobTable
from h3runtime.media.delivery import FULL
from h3runtime.observe.metrics import Metrics
from h3runtime.settings import Settings

ADMISSIONS = 16
"""Requests that are judged at once. Fetching and decoding take their time, and others need threads to send clips."""

DRAIN_POLL = 0.5
"""Seconds between looks at whether the server drains, while a request is judged."""
SHUTTING_DOWN = "the server is shutting down and takes no new jobs"


class Service:
    """Opening takes the data folder's lock and starts nothing; `start` starts the engine; `close` ends everything."""

    def __init__(self, settings: Settings, recipe: EngineRecipe, limits: Limits | None = None) -> None:
        self.settings = settings
        self.folders = Folders(settings)
        self.table = JobTable()
        self.queue = JobQueue(self.table, self.folders, settings.queue_limit)
        self.supervisor = Supervisor(recipe, self.queue, limits or Limits.from_settings(settings))
        self.metrics = _metrics(self)
        self._admission = Admission(settings, self.queue, self.folders)
        self._admitting = CapacityLimiter(ADMISSIONS)
        self.queue.on_end = self._count
        self.supervisor.on_loaded = self._tell_loaded

    @property
    def state(self) -> EngineState:
        return self.supervisor.state

    def start(self) -> None:
        self.supervisor.start()

    def close(self) -> None:
        """Not a drain: a job that computes is interrupted."""
        self.supervisor.close()
        self.folders.close()

    async def submit(self, content_type: str, stream: AsyncIterator[bytes]) -> Job:
        """Read, judge and queue one request. Uploads that no job took over are gone afterwards."""
        facts = self._ready_facts()
        folder = self.folders.tmp / f"upload-{ULID()}"
        try:
            await run_sync(self.folders.restore)
            delivery = await read_delivery(content_type, stream, folder, self.settings.max_json_bytes)
            return await self._admitted(delivery, facts)
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull("the disk has no room for what the request holds") from error
            raise
        finally:
            await run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))

    async def _admitted(self, delivery: Delivery, facts: EngineFacts) -> Job:
        """What admission says of it; `Draining` as soon as no job can come of it, however long its media take."""
        judging = asyncio.ensure_future(run_sync(self._admission.admit, delivery, facts, limiter=self._admitting))
        while not judging.done():
            await asyncio.wait({judging}, timeout=DRAIN_POLL)
            if self.queue.closed and not judging.done():
                # Its thread can't be ended: what it comes to is nobody's any more.
                judging.cancel()
                raise Draining(SHUTTING_DOWN)
        return judging.result()

    async def wait(self, job_id: str, seconds: float | None) -> Job:
        """The job when it has ended, or as it is after `seconds`."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ring() -> None:
            # The loop may be gone by the time a job ends; then nobody waits for it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        give_up = self.table.watch(job_id, ring)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), seconds)
        finally:
            give_up()
        return self.table.get(job_id)

    def _ready_facts(self) -> EngineFacts:
        """What the engine can do; the error that says why there is none to ask."""
        state = self.state
        if self.queue.closed and state.status is not EngineStatus.DEAD:
            raise Draining(SHUTTING_DOWN)
        if state.status is EngineStatus.DEAD:
            raise NotReady("the engine is dead; /ready says why")
        if state.status is not EngineStatus.READY or state.facts is None:
            raise Loading(f"the engine is {state.status}; try again in a moment")
        return state.facts

    def _count(self, job: Job) -> None:
        self.metrics.job_ended(job.spec.task.value, job.status.value, job_timings(job), output_seconds(job))

    def _tell_loaded(self, facts: EngineFacts) -> None:
        self.metrics.engine_loaded(facts.checkpoint, facts.attention.default, facts.linear.default)
        for part in facts.components:
            self.metrics.component_loaded(
                part.component, part.partition or "", part.load_seconds, part.bytes_per_second
            )


def _metrics(service: Service) -> Metrics:
    metrics = Metrics(__version__)
    metrics.watch("ready", "1 if jobs are taken.", lambda: float(service.state.status is EngineStatus.READY))
    metrics.watch("jobs_queued", "Jobs that wait.", lambda: float(service.queue.waiting))
    metrics.watch("jobs_running", "Jobs that compute.", lambda: float(service.queue.running is not None))
    metrics.watch("engine_restarts", "Times the engine was started again.", lambda: float(service.state.restarts))
    metrics.watch("disk_free_bytes", "Free bytes where jobs write.", lambda: float(service.folders.free_bytes()))
    return metrics

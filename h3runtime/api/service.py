"""One running service behind its HTTP face: what `routes`, the OpenAI shape and the page ask.

`serve` opens one for the life of the process, tests open as many as they like with a fake engine. Whatever takes time
(judging media, waiting for the engine, the store) goes on in threads; waiting for a job takes none.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from ulid import ULID

from h3runtime.api.admission import Admission
from h3runtime.api.bells import Bell
from h3runtime.api.body import Delivery, read_delivery
from h3runtime.api.callbacks import Callbacks
from h3runtime.api.caller import Caller
from h3runtime.api.disk import FreeBytes
from h3runtime.api.estimates import Ahead, estimate_answer
from h3runtime.api.idempotency import Turns, fingerprint_of, same
from h3runtime.api.limits import DRAIN_POLL, SHUTTING_DOWN, Submissions
from h3runtime.api.reports import Reports, metrics_of
from h3runtime.core import EngineFacts
from h3runtime.errors import BackendUnavailable, DiskFull, Draining, JobNotFound, Loading, NotReady
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.jobs.engine_state import EngineState, EngineStatus
from h3runtime.jobs.files import Folders
from h3runtime.jobs.queue import JobQueue
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.supervisor import Limits, Supervisor
from h3runtime.jobs.table import Event, Job, JobTable, Order, Status
from h3runtime.media.delivery import FULL
from h3runtime.media.ffmpeg import FFmpeg, find_ffmpeg
from h3runtime.media.formats import codecs_of
from h3runtime.quality.shelf import Shelf
from h3runtime.settings import Settings

ADMISSIONS = 16
"""Requests that are judged at once. Fetching and decoding take their time, and others need threads to send clips."""
DELETIONS = 8
"""Jobs that are deleted at once: each waits for the engine to let go of its job."""
RECENT = 1000
"""Jobs that are looked through at start for one whose end nobody was told of."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job that a request asked for. replayed: an earlier one with the same key made it."""

    job: Job
    replayed: bool = False


class Service:
    """Opening takes the data folder's lock and starts nothing; `start` starts the engine; `close` ends everything."""

    def __init__(
        self, settings: Settings, recipe: EngineRecipe, limits: Limits | None = None, tool: FFmpeg | None = None
    ) -> None:
        """tool: the ffmpeg that clips are made with; found if it isn't given. `SettingsError` for a folder, a record of
        jobs or a secret that can't be used."""
        self.settings = settings
        self.folders = Folders(settings)
        try:
            self._open(settings, recipe, limits or Limits.from_settings(settings), tool or _found_ffmpeg())
        except BaseException:
            self.folders.close()
            raise

    def _open(self, settings: Settings, recipe: EngineRecipe, limits: Limits, tool: FFmpeg) -> None:
        self.codecs = codecs_of(tool)
        self.free_bytes = FreeBytes(self.folders.free_bytes)
        self.metrics = metrics_of(self)
        # What an earlier process left is taken up here, before any engine starts.
        self.table = JobTable(JobStore(self.folders.store))
        self.queue = JobQueue(self.table, self.folders, settings.queue_limit)
        self.supervisor = Supervisor(recipe, self.queue, limits)
        self.callbacks = Callbacks(settings, self.table.store, self.metrics.callback)
        self.submissions = Submissions()
        self.shelf = Shelf(settings.data_dir)
        self._admission = Admission(
            settings, self.queue, self.folders, self.supervisor, self.callbacks, tool, self.shelf
        )
        self._admitting = CapacityLimiter(ADMISSIONS)
        self._deleting = CapacityLimiter(DELETIONS)
        self._turns = Turns()
        reports = Reports(self.metrics, self.callbacks)
        self.queue.on_end = reports.job_ended
        self.queue.on_progress = reports.progressed
        self.supervisor.on_loaded = reports.engine_loaded

    @property
    def state(self) -> EngineState:
        return self.supervisor.state

    @property
    def is_draining(self) -> bool:
        return self.queue.closed

    @property
    def is_disk_full(self) -> bool:
        """As it was a second ago at most."""
        return self.free_bytes() < self.settings.disk_floor_bytes

    @property
    def asks_for_keys(self) -> bool:
        return bool(self.settings.api_key or self.settings.api_keys_file)

    def start(self) -> None:
        newest, _ = self.table.page(RECENT, None) if self.callbacks.is_on else ([], False)
        self.callbacks.start([job for job in newest if job.status.ended])
        self.supervisor.start()

    def close(self) -> None:
        """Not a drain: a job that computes is interrupted."""
        self.supervisor.close()
        self.callbacks.close()
        self.table.close()
        self.folders.close()

    # Requests.

    def check_takes(self, caller: Caller) -> None:
        """Refuse before the body comes, unless it may be one that has been taken already."""
        if not (caller.idempotency_key and self.table.by_key(caller.owner, caller.idempotency_key)):
            self._ready_facts()

    async def submit(self, content_type: str, stream: AsyncIterator[bytes], caller: Caller) -> Submitted:
        """Read, judge and queue one request. Uploads that no job took over are gone afterwards."""
        self.check_takes(caller)
        with self.submissions.of(caller.owner):
            async with self.uploads() as folder:
                delivery = await read_delivery(content_type, stream, folder, self.settings.max_json_bytes)
                return await self.submit_delivery(delivery, caller)

    async def submit_delivery(self, delivery: Delivery, caller: Caller) -> Submitted:
        """Judge and queue a request that was read; its files are the caller's to remove (`uploads`)."""
        async with self._turns.take(caller.owner, caller.idempotency_key):
            order = Order(key=caller.idempotency_key, request_id=caller.request_id)
            if caller.idempotency_key:
                order = replace(order, fingerprint=await run_sync(fingerprint_of, delivery))
                if (earlier := self.table.by_key(caller.owner, caller.idempotency_key)) is not None:
                    return Submitted(same(earlier, order.fingerprint), replayed=True)
            facts = self._ready_facts()
            return Submitted(await self._judging(self._admission.admit, delivery, facts, caller.owner, order))

    async def estimate(self, content_type: str, stream: AsyncIterator[bytes], caller: Caller) -> dict[str, Any]:
        """What a request would take, an `EstimateAnswer`. Nothing of it is kept or queued; its key means nothing."""
        facts = self._ready_facts()
        with self.submissions.of(caller.owner):
            async with self.uploads() as folder:
                delivery = await read_delivery(content_type, stream, folder, self.settings.max_json_bytes)
                outlook = await self._judging(self._admission.estimate, delivery, facts, caller.owner)
        return await run_sync(lambda: estimate_answer(outlook, self._ahead()))

    @asynccontextmanager
    async def uploads(self) -> AsyncIterator[Path]:
        """A folder for one request's uploads, gone afterwards. `DiskFull` if the disk has no room for them."""
        folder = self.folders.tmp / f"upload-{ULID()}"
        try:
            await run_sync(self.folders.restore)
            yield folder
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull("the disk has no room for what the request holds") from error
            raise
        finally:
            await run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))

    # Jobs.

    def job(self, job_id: str, owner: str) -> Job:
        """The job as it is now. `JobNotFound`, also for one of somebody else."""
        return self.table.find(job_id, owner)

    async def page(
        self, limit: int, after: str | None, owner: str, *, oldest_first: bool = False
    ) -> tuple[list[Job], bool]:
        """Newest first and older than `after`, or the other way round; and whether there are more."""
        return await run_sync(lambda: self.table.page(limit, after, owner, oldest_first=oldest_first))

    async def wait(self, job_id: str, owner: str, seconds: float | None = None) -> Job:
        """The job when it has ended, or as it is after `seconds` or when the server drains. `JobNotFound` if it is
        deleted meanwhile."""
        self.table.find(job_id, owner)
        bell = Bell()
        undo = self.table.watch(job_id, bell.ring)
        try:
            job = self.table.find(job_id, owner)
            # One that waits when the drain has begun isn't computed any more here.
            if not (self.is_draining and job.status is Status.QUEUED):
                await bell.wait(seconds)
        finally:
            undo()
        return self.table.find(job_id, owner)

    async def events(self, job_id: str, owner: str, after: int | None = None) -> AsyncGenerator[Event]:
        """What happens to a job, from its state now or from the event `after` on, until it ends, is deleted, or the
        server drains."""
        bell, told = Bell(), False
        try:
            undo = self.table.follow(job_id, bell.ring)
        except JobNotFound:
            return
        try:
            while True:
                ended = self.table.find(job_id, owner).status.ended
                news = self.table.events(job_id, after)
                if ended and not news and not told:
                    news = self.table.events(job_id, None)
                for event in news:
                    yield event
                    after, told = event.id, True
                if ended or self.is_draining:
                    return
                await bell.wait()
        except JobNotFound:
            return
        finally:
            undo()

    async def lost(self, job: Job) -> None:
        """Its clip was found to be gone. Where the whole folder is, a disk that isn't mounted, nothing changes."""
        await run_sync(self._lose, job.id)

    async def cancel(self, job_id: str, owner: str) -> Job:
        """Stop it at its next step, or take it out of the line; of no effect after its end."""
        self.table.find(job_id, owner)
        await run_sync(self.supervisor.cancel, job_id)
        return self.table.find(job_id, owner)

    async def delete(self, job_id: str, owner: str) -> Job:
        """End it if it hasn't ended, and remove it with all that belongs to it. The last that was seen of it."""
        self.table.find(job_id, owner)
        return await run_sync(self.queue.delete, job_id, limiter=self._deleting)

    # Its own.

    async def _judging(self, judge: Callable[..., T], *arguments: object) -> T:
        """What `judge` makes of it in a thread; `Draining` as soon as nothing can come of it, however long its media
        take."""
        judging = asyncio.ensure_future(run_sync(judge, *arguments, limiter=self._admitting))
        while not judging.done():
            await asyncio.wait({judging}, timeout=DRAIN_POLL)
            if self.is_draining and not judging.done():
                # Its thread can't be ended: what it comes to is nobody's any more.
                judging.cancel()
                raise Draining(SHUTTING_DOWN)
        return judging.result()

    def _lose(self, job_id: str) -> None:
        if self.folders.outputs.is_dir():
            self.table.change(job_id, status=Status.EXPIRED)
            self.folders.drop_tail(job_id)

    def _ahead(self) -> Ahead:
        """The queue as a request meets it now."""
        live = tuple(self.table.live())
        return Ahead(live, self.settings.queue_limit, self.folders.free_bytes(), self.queue.predict)

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


def _found_ffmpeg() -> FFmpeg:
    """Without one the engine says why it can't serve; what is asked of here is then refused for want of an encoder."""
    try:
        return find_ffmpeg()
    except BackendUnavailable as error:
        return FFmpeg(Path("ffmpeg"), "none", frozenset(), error.message)

"""From a delivery to a job in line, or to one error that lists everything wrong with it; or to what it would take.

Runs in a worker thread. The order:

    fields -> a copy of every medium, measured -> rules -> every clip and sound decoded -> the output's name
           -> memory, by the engine's own figures -> free disk -> in line

so that nothing is decoded whose measure already breaks a limit, and nothing reaches the engine before all of it is
settled: two bad requests can't harm a good one. An estimate goes the same way on copies of its own, and what would keep
it out of the line is part of its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog
from ulid import ULID

from h3runtime.api import disk, rules
from h3runtime.api.body import Delivery, named_parts
from h3runtime.api.faults import Faults
from h3runtime.api.inputs.copies import Intake, MediaSource
from h3runtime.api.inputs.fetching import Fetcher
from h3runtime.api.inputs.job_clips import JobClips
from h3runtime.api.inputs.opened import Inputs
from h3runtime.api.judging.clip import Judged, judge_clip
from h3runtime.api.judging.partitions import judge_partition
from h3runtime.api.judging.spec import encode_of, spec_of
from h3runtime.api.judging.twice import judge_twice
from h3runtime.api.request import GenerateBody, ReadBody, read_body
from h3runtime.core import TAIL_FRAMES, EngineFacts, Estimate, GenerateSpec, TailRequest
from h3runtime.errors import H3Error, InvalidRequest, NotReady, Offence, OutputExists, TooLargeForMemory
from h3runtime.jobs.files import Folders
from h3runtime.jobs.outputs import outputs_of
from h3runtime.jobs.queue import JobQueue
from h3runtime.jobs.table import Job, Order
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.formats import judge_format, suffix_of
from h3runtime.observe.private import keep_private, texts_in
from h3runtime.observe.spans import span
from h3runtime.quality.evidence import Evidence
from h3runtime.quality.shelf import Held, Shelf
from h3runtime.settings import Settings

log = structlog.get_logger("h3runtime.admission")


class Engines(Protocol):
    """Who tells what a request would take: the supervisor."""

    def estimate(self, spec: GenerateSpec, seconds: float = ...) -> Estimate: ...


class Callbacks(Protocol):
    """Who knows which hosts may be told of a job's end."""

    def judge(self, url: str) -> Offence | None: ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request would take. needed_bytes: of the disk. priority: as the request has it. refusal: why it would not
    be taken now."""

    spec: GenerateSpec
    estimate: Estimate
    needed_bytes: int
    warnings: tuple[str, ...]
    priority: int
    refusal: H3Error | None


class Admission:
    """Judges deliveries for one server."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        folders: Folders,
        engines: Engines,
        callbacks: Callbacks,
        tool: FFmpeg,
        shelf: Shelf,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._folders = folders
        self._engines = engines
        self._callbacks = callbacks
        self._tool = tool
        self._shelf = shelf

    def admit(self, delivery: Delivery, facts: EngineFacts, owner: str = "", order: Order | None = None) -> Job:
        """A job in line. `InvalidRequest` and its kinds, `OutputExists`, `QueueFull`, `Draining`, `DiskFull`.

        order: its key, fingerprint and request id; the rest is the request's to say.
        """
        self._queue.check_room()
        disk.require(0, self._folders.free_bytes(), self._settings.disk_floor_bytes)
        job_id = str(ULID())
        try:
            with span("admission", job_id=job_id):
                asked = self._asked(job_id, delivery, facts, owner)
                return self._queued(asked, facts, owner, order or Order())
        except BaseException:
            self._folders.forget(job_id)
            raise

    def estimate(self, delivery: Delivery, facts: EngineFacts, owner: str = "") -> Outlook:
        """What the request would take; nothing of it stays. `InvalidRequest` and `BadMedia` as for a job; what else
        would keep it out is `refusal`."""
        job_id = f"estimate-{ULID()}"
        try:
            asked = self._asked(job_id, delivery, facts, owner)
            estimate = self._engines.estimate(asked.spec)
            needed = disk.needed_bytes(asked.spec)
            refusal = self._refusal(asked, estimate, needed, owner)
            return Outlook(asked.spec, estimate, needed, asked.warnings, asked.body.priority, refusal)
        finally:
            self._folders.forget(job_id)

    def _queued(self, asked: _Asked, facts: EngineFacts, owner: str, order: Order) -> Job:
        spec = asked.spec
        with self._queue.promise_outputs(outputs_of(spec), spec.overwrite, owner):
            estimate = self._estimated(spec)
            if estimate is not None:
                _require_memory(estimate)
            disk.require(disk.needed_bytes(spec), self._folders.free_bytes(), self._settings.disk_floor_bytes)
            spec.scratch.mkdir(parents=True, exist_ok=True)
            return self._queue.admit(
                spec,
                asked.warnings,
                facts.checkpoint,
                owner=owner,
                order=replace(order, priority=asked.body.priority, callback_url=asked.body.callback_url),
                work=estimate.work if estimate else None,
            )

    def _estimated(self, spec: GenerateSpec) -> Estimate | None:
        """None if the engine can't tell just now: a job then shows whether it fits."""
        try:
            return self._engines.estimate(spec)
        except InvalidRequest:
            raise
        except H3Error as error:
            log.warning("estimate_failed", job_id=spec.job_id, reason=error.message)
            return None

    def _refusal(self, asked: _Asked, estimate: Estimate, needed: int, owner: str) -> H3Error | None:
        """The first thing that would keep it out of the line."""
        try:
            with self._queue.promise_outputs(outputs_of(asked.spec), asked.spec.overwrite, owner):
                pass
            _require_memory(estimate)
            disk.require(needed, self._folders.free_bytes(), self._settings.disk_floor_bytes)
            self._queue.check_room()
        except (OutputExists, TooLargeForMemory, NotReady) as error:
            return error
        return None

    def _asked(self, job_id: str, delivery: Delivery, facts: EngineFacts, owner: str) -> _Asked:
        keep_private(*texts_in(delivery.request.get("prompt")))
        read = read_body(delivery.request)
        faults = Faults([*delivery.offences, *read.offences, *_stray_parts(delivery)])
        faults.offences += judge_format(delivery.request.get("format"), self._tool)
        held = self._shelf.now() if "quality" in delivery.request else self._shelf.held
        judged = self._judge(read, self._intake(job_id, delivery), facts, held, owner, faults)
        faults.raise_any()
        spec = self._spec(job_id, read, judged, facts, held, delivery.request)
        return _Asked(read.body, spec, tuple(judged.verdict.warnings))

    def _intake(self, job_id: str, delivery: Delivery) -> Intake:
        settings = self._settings
        fetcher = Fetcher(settings.url_allow, settings.max_upload_bytes)
        source = MediaSource(delivery.files, settings.media_root, settings.max_upload_bytes, fetcher)
        return Intake(source, self._folders.inputs_of(job_id))

    def _judge(
        self, read: ReadBody, intake: Intake, facts: EngineFacts, held: Held, owner: str, faults: Faults
    ) -> Judged:
        jobs = JobClips(self._queue.table, self._folders, owner)
        return judge_twice(read.body, intake, jobs, faults, lambda inputs: self._judge_all(read, inputs, facts, held))

    def _judge_all(self, read: ReadBody, inputs: Inputs, facts: EngineFacts, held: Held) -> Judged:
        judged = judge_clip(read, inputs, self._settings.max_area, self._settings.max_frames)
        body, verdict = read.body, judged.verdict
        judge_partition(body, judged.resolved.task, facts, verdict)
        rules.judge_training(judged.resolved.frames, facts, verdict)
        rules.judge_backends(body, facts, verdict)
        rules.judge_loras(body, judged.resolved.task, facts, verdict)
        rules.judge_upscaler(body, judged.resolved.refine, facts, verdict)
        rules.judge_output(body.output, self._folders.outputs, verdict, encode_of(body.format).container)
        if body.callback_url is not None and (offence := self._callbacks.judge(body.callback_url)) is not None:
            verdict.offences.append(offence)
        self._evidence(body, judged, facts, held, verdict)
        return judged

    def _spec(
        self,
        job_id: str,
        read: ReadBody,
        judged: Judged,
        facts: EngineFacts,
        held: Held,
        words: Mapping[str, Any],
    ) -> GenerateSpec:
        """Of a request in which nothing is wrong, so that what is judged once more finds nothing."""
        body, verdict = read.body, rules.Verdict(read)
        return spec_of(
            body,
            judged,
            job_id=job_id,
            output=self._folders.outputs / (body.output or job_id + suffix_of(encode_of(body.format).container)),
            scratch=self._folders.scratch_of(job_id),
            words=words,
            backends=rules.judge_backends(body, facts, verdict),
            loras=rules.judge_loras(body, judged.resolved.task, facts, verdict),
            refine=rules.judge_upscaler(body, judged.resolved.refine, facts, verdict),
            tail=TailRequest(self._folders.tail_of(job_id), min(judged.resolved.frames, TAIL_FRAMES)),
            evidence=self._evidence(body, judged, facts, held, verdict),
        )

    def _evidence(
        self, body: GenerateBody, judged: Judged, facts: EngineFacts, held: Held, verdict: rules.Verdict
    ) -> Evidence | None:
        resolved = judged.resolved
        return rules.judge_quality(body, resolved.task, resolved.size, resolved.frames, facts, held, verdict)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request in which nothing is wrong."""

    body: GenerateBody
    spec: GenerateSpec
    warnings: tuple[str, ...]


def _require_memory(estimate: Estimate) -> None:
    if not estimate.fits:
        told = f"the predicted peak of {estimate.peak_bytes} bytes is above the {estimate.capacity_bytes} there are"
        fits = estimate.would_fit
        raise TooLargeForMemory(f"{told}; {fits}" if fits else told, [Offence("frames", told, fits)])


def _stray_parts(delivery: Delivery) -> list[Offence]:
    """Every upload must be named by a field: a part that nobody reads is a mistake of the client's."""
    named = set(named_parts(delivery.request))
    legal = 'parts that a field names by {"upload": PART}'
    return [
        Offence(name, "no field of the request names this part", legal) for name in delivery.files if name not in named
    ]

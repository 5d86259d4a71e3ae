"""From a delivery to a job in line, or to one error that lists everything wrong with it.

Runs in a worker thread. The order:

    fields -> a copy of every medium, measured -> rules -> every clip and sound decoded -> the output's name

so that nothing is decoded whose measure already breaks a limit, and nothing reaches the engine before all of it is
settled: two bad requests can't harm a good one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ulid import ULID

from h3runtime.api import rules
from h3runtime.api.body import Delivery
from h3runtime.api.faults import Faults
from h3runtime.api.inputs.copies import Intake, MediaSource
from h3runtime.api.inputs.fetching import Fetcher
from h3runtime.api.inputs.job_clips import JobClips
from h3runtime.api.inputs.opened import Inputs
from h3runtime.api.judging.clip import Judged, judge_clip
from h3runtime.api.judging.partitions import judge_partition
from h3runtime.api.judging.spec import spec_of
from h3runtime.api.judging.twice import judge_twice
from h3runtime.api.request import GenerateBody, ReadBody, read_body
from h3runtime.core import TAIL_FRAMES, EngineFacts, GenerateSpec, TailRequest
from h3runtime.errors import DiskFull, Offence
from h3runtime.jobs.files import Folders
from h3runtime.jobs.queue import JobQueue, outputs_of
from h3runtime.jobs.table import Job
from h3runtime.settings import Settings


class Admission:
    """Judges deliveries for one server."""

    def __init__(self, settings: Settings, queue: JobQueue, folders: Folders) -> None:
        self._settings = settings
        self._queue = queue
        self._folders = folders

    def admit(self, delivery: Delivery, facts: EngineFacts) -> Job:
        """A job in line. `InvalidRequest`, `BadMedia`, `OutputExists`, `QueueFull`, `Draining`, `DiskFull`."""
        self._queue.check_room()
        if self._folders.is_full():
            raise DiskFull("free disk space is below the floor that this server keeps")
        job_id = str(ULID())
        try:
            return self._admit(job_id, delivery, facts)
        except BaseException:
            self._folders.forget(job_id)
            raise

    def _admit(self, job_id: str, delivery: Delivery, facts: EngineFacts) -> Job:
        read = read_body(delivery.request)
        faults = Faults([*delivery.offences, *read.offences, *_stray_parts(delivery)])
        judged = self._judge(read, self._intake(job_id, delivery), facts, faults)
        faults.raise_any()
        spec = self._spec(job_id, read.body, judged, delivery.request)
        with self._queue.promise_outputs(outputs_of(spec), read.body.overwrite):
            spec.scratch.mkdir(parents=True, exist_ok=True)
            return self._queue.admit(spec, tuple(judged.verdict.warnings), facts.checkpoint)

    def _intake(self, job_id: str, delivery: Delivery) -> Intake:
        settings = self._settings
        fetcher = Fetcher(settings.url_allow, settings.max_upload_bytes)
        source = MediaSource(delivery.files, settings.media_root, settings.max_upload_bytes, fetcher)
        return Intake(source, self._folders.inputs_of(job_id))

    def _judge(self, read: ReadBody, intake: Intake, facts: EngineFacts, faults: Faults) -> Judged:
        jobs = JobClips(self._queue.table, self._folders)
        return judge_twice(read.body, intake, jobs, faults, lambda inputs: self._judge_all(read, inputs, facts))

    def _judge_all(self, read: ReadBody, inputs: Inputs, facts: EngineFacts) -> Judged:
        judged = judge_clip(read, inputs, self._settings.max_area, self._settings.max_frames)
        body, verdict = read.body, judged.verdict
        judge_partition(body, judged.resolved.task, facts, verdict)
        rules.judge_backend("attention", body.attention, facts.attention, verdict)
        rules.judge_backend("linear", body.linear, facts.linear, verdict)
        rules.judge_output(body.output, self._folders.outputs, verdict)
        return judged

    def _spec(self, job_id: str, body: GenerateBody, judged: Judged, words: Mapping[str, Any]) -> GenerateSpec:
        return spec_of(
            body,
            judged,
            job_id=job_id,
            output=self._folders.outputs / (body.output or f"{job_id}{rules.SUFFIX}"),
            scratch=self._folders.scratch_of(job_id),
            words=words,
            tail=TailRequest(self._folders.tail_of(job_id), min(judged.resolved.frames, TAIL_FRAMES)),
        )


def _stray_parts(delivery: Delivery) -> list[Offence]:
    """Every upload must be named by a field: a part that nobody reads is a mistake of the client's."""
    named = set(_named_parts(delivery.request))
    legal = 'parts that a field names by {"upload": PART}'
    return [
        Offence(name, "no field of the request names this part", legal) for name in delivery.files if name not in named
    ]


def _named_parts(value: Any) -> Iterator[str]:
    """Wherever they are in the request: one in a field that has another fault is named all the same."""
    if isinstance(value, dict):
        if isinstance(part := value.get("upload"), str):
            yield part
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _named_parts(item)

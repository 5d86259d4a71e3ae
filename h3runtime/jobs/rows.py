"""A job as a row: two texts of JSON beside the columns that are searched.

The specification is large and hardly ever changes, the state is small and changes often, so each has a text of its own.
Dataclasses go through pydantic, which also judges what comes back; an error keeps its code, its words and its place,
and is again of the class that has its code. Nothing is pickled: a row that somebody else wrote runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from h3runtime.core import Clip, GenerateSpec, Progress, Work
from h3runtime.errors import H3Error, JobError, Offence
from h3runtime.jobs.job import Job, Order, Status


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as plain values."""

    code: str
    message: str
    offences: tuple[Offence, ...] = ()
    stage: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """All of a job but its specification; the fields are those of `Job`."""

    warnings: tuple[str, ...]
    status: Status
    progress: Progress
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    clip: Clip | None
    failure: Failure | None
    first_after_start: bool
    checkpoint: str | None
    owner: str
    order: Order
    attempt: int
    work: Work | None
    stopping: bool = False
    expires_at: datetime | None = None
    waited: float | None = None
    lasted: float | None = None


def spec_text(spec: GenerateSpec) -> str:
    """JSON of the specification."""
    return _text(GenerateSpec, spec)


def state_text(job: Job) -> str:
    """JSON of all the rest. A preview is a file of its own."""
    names = [name for name in State.__dataclass_fields__ if name not in ("failure", "progress")]
    shared = {name: getattr(job, name) for name in names}
    failure = _failure(job.error) if job.error is not None else None
    return _text(State, State(**shared, progress=replace(job.progress, preview=None), failure=failure))


def job_of(spec: str, state: str) -> Job:
    """The job that both texts tell of. ValueError if they can't be read."""
    kept: State = _value(State, state)
    shared = {name: getattr(kept, name) for name in State.__dataclass_fields__ if name != "failure"}
    error = _error(kept.failure) if kept.failure else None
    return Job(spec=_value(GenerateSpec, spec), error=error, **shared)


def _text(kind: type, value: object) -> str:
    # Through Python's own JSON, which keeps what isn't finite; checks may hold such figures.
    return json.dumps(_adapter(kind).dump_python(value, mode="json", warnings=False), separators=(",", ":"))


def _value(kind: type, text: str) -> Any:
    try:
        return _adapter(kind).validate_json(text)
    except ValueError:
        # Half as fast, but it takes lone surrogates, by which Python spells names that aren't UTF-8.
        return _adapter(kind).validate_python(json.loads(text))


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _failure(error: H3Error) -> Failure:
    place = (error.stage, error.step) if isinstance(error, JobError) else (None, None)
    return Failure(error.code, error.message, error.offences, *place)


def _error(failure: Failure) -> H3Error:
    kind = _kinds().get(failure.code, JobError)
    if issubclass(kind, JobError):
        return kind(failure.message, failure.offences, failure.stage, failure.step)
    return kind(failure.message, failure.offences)


@cache
def _kinds() -> dict[str, type[H3Error]]:
    """By code. Where an error of a job shares its code with one of a request (a full disk), it is the job's."""
    found: dict[str, type[H3Error]] = {}
    for kind in sorted(_below(H3Error), key=lambda kind: issubclass(kind, JobError)):
        found[kind.code] = JobError if kind.code == JobError.code else kind
    return found


def _below(kind: type[H3Error]) -> Iterator[type[H3Error]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)

"""Every error that a user can meet, as one tree.

    H3Error                          code, HTTP status, message, offending fields
    ├── InvalidRequest               422 invalid_request      the request breaks a rule; lists every offender
    │   ├── BadMedia                 422 bad_media            a picture, clip or sound that can't be used
    │   ├── IdempotencyMismatch      422 idempotency_mismatch the same Idempotency-Key with another body
    │   └── TooLargeForMemory        422 out_of_memory_predicted
    ├── MalformedRequest             400 malformed_request    not JSON, broken multipart
    ├── Unauthorized                 401 unauthorized         no key, or one that this server doesn't know
    ├── NotFound                     404 not_found
    │   ├── JobNotFound              404 job_not_found
    │   └── ModelNotFound            404 model_not_found
    ├── MethodNotAllowed             405 method_not_allowed
    ├── NotFinished                  409 not_finished         a job's content was asked for before it is there
    ├── OutputExists                 409 output_exists
    ├── OutputExpired                410 output_expired
    ├── BodyTooLarge                 413 body_too_large
    ├── UnsupportedMediaType         415 media_type
    ├── RateLimited                  429 rate_limited
    ├── InternalError                500 internal             our bug; carries no detail of it
    ├── NotReady                     503
    │   ├── Loading                  503 loading
    │   ├── Draining                 503 draining
    │   ├── QueueFull                503 queue_full
    │   └── DiskFull                 503 disk_full
    ├── SettingsError                     invalid_settings    a knob has an illegal value
    ├── CheckpointError                   invalid_checkpoint  a file on disk is not what it should be
    ├── BackendUnavailable           422 backend_unavailable  asked for by name and can't run here
    └── JobError                          why a running job ended without a clip
        ├── OutOfMemory                   out_of_memory
        ├── NumericalError                numerical_error     something non-finite, with the step
        ├── DegenerateOutput              degenerate_output   a check of the result failed
        ├── EncoderFailed                 encoder_failed      ffmpeg ended badly
        ├── JobTimeout                    timeout             a stage made no progress within its limit
        ├── JobDiskFull                   disk_full
        ├── Interrupted                   interrupted
        ├── CheckpointChanged             checkpoint_changed  other weights are loaded than it was admitted under
        ├── JobCancelled                  cancelled
        └── EngineDead                    engine_dead

Messages are written for the person who sent the request: they name the field, the value and what would be legal, and
never hold a path of the server or a traceback. All classes pickle, since they cross from the engine process to the API.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Offence:
    """One thing that is wrong: `field` as the client wrote it (`first_frame.data`), why, and what would be legal."""

    field: str
    message: str
    legal: str = ""


def encodable(text: str) -> str:
    """`text` as any UTF-8 stream takes it: lone surrogates, by which Python spells names that aren't UTF-8, escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class H3Error(Exception):
    """Root of all errors raised on purpose. `offences` lists every offender, in the order of the request."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str, offences: Iterable[Offence] = ()) -> None:
        self.message = encodable(message)
        super().__init__(self.message)
        self.offences = tuple(offences)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.offences)


class InvalidRequest(H3Error):
    code, status, title = "invalid_request", 422, "The request breaks a rule"


class BadMedia(InvalidRequest):
    code, status, title = "bad_media", 422, "A medium can't be used"


class IdempotencyMismatch(InvalidRequest):
    code, status, title = "idempotency_mismatch", 422, "The key was used for another request"


class TooLargeForMemory(InvalidRequest):
    """The predicted peak is above what the engine may have; says both and what would fit."""

    code, status, title = "out_of_memory_predicted", 422, "The request would not fit into memory"


class Unauthorized(H3Error):
    code, status, title = "unauthorized", 401, "A key is needed"


class MalformedRequest(H3Error):
    code, status, title = "malformed_request", 400, "The request can't be read"


class NotFound(H3Error):
    code, status, title = "not_found", 404, "Not found"


class JobNotFound(NotFound):
    code, status, title = "job_not_found", 404, "No such job"


class ModelNotFound(NotFound):
    code, status, title = "model_not_found", 404, "No such model"


class MethodNotAllowed(H3Error):
    code, status, title = "method_not_allowed", 405, "Method not allowed"


class NotFinished(H3Error):
    code, status, title = "not_finished", 409, "The job has no clip"


class OutputExists(H3Error):
    code, status, title = "output_exists", 409, "The output exists"


class OutputExpired(H3Error):
    code, status, title = "output_expired", 410, "The output is gone"


class BodyTooLarge(H3Error):
    code, status, title = "body_too_large", 413, "The body is too large"


class UnsupportedMediaType(H3Error):
    code, status, title = "media_type", 415, "Unsupported media type"


class RateLimited(H3Error):
    code, status, title = "rate_limited", 429, "Too many requests"


class InternalError(H3Error):
    code, status, title = "internal", 500, "Internal error"


class NotReady(H3Error):
    code, status, title = "loading", 503, "Not ready"


class Loading(NotReady):
    code, status, title = "loading", 503, "Loading"


class Draining(NotReady):
    code, status, title = "draining", 503, "Draining"


class QueueFull(NotReady):
    code, status, title = "queue_full", 503, "The queue is full"


class DiskFull(NotReady):
    code, status, title = "disk_full", 503, "The disk is full"


class SettingsError(H3Error):
    code, title = "invalid_settings", "A setting is illegal"


class CheckpointError(H3Error):
    """A file that can't be loaded. `offences` name tensors (or the file); the message names the file."""

    code, title = "invalid_checkpoint", "A checkpoint can't be loaded"


class BackendUnavailable(H3Error):
    code, status, title = "backend_unavailable", 422, "A backend can't run here"


class JobError(H3Error):
    """Why a running job ended without a clip. `stage` and `step` say where; the step counts from 0."""

    code, title = "internal", "The job failed"

    def __init__(
        self, message: str, offences: Iterable[Offence] = (), stage: str | None = None, step: int | None = None
    ) -> None:
        super().__init__(message, offences)
        self.stage = stage
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.offences, self.stage, self.step)


class OutOfMemory(JobError):
    code, title = "out_of_memory", "Out of memory"


class NumericalError(JobError):
    code, title = "numerical_error", "A result is not finite"


class DegenerateOutput(JobError):
    code, title = "degenerate_output", "The result is degenerate"


class EncoderFailed(JobError):
    code, title = "encoder_failed", "The encoder failed"


class JobTimeout(JobError):
    code, title = "timeout", "A stage took too long"


class JobDiskFull(JobError):
    code, title = "disk_full", "The disk is full"


class Interrupted(JobError):
    code, title = "interrupted", "The job was interrupted"


class CheckpointChanged(JobError):
    code, title = "checkpoint_changed", "The checkpoint changed"


class JobCancelled(JobError):
    code, title = "cancelled", "The job was cancelled"


class EngineDead(JobError):
    code, title = "engine_dead", "The engine died"


def invalid(offences: Iterable[Offence]) -> InvalidRequest:
    """An `InvalidRequest` whose message sums up its offences, one clause each."""
    listed = tuple(offences)
    return InvalidRequest("; ".join(f"{o.field}: {o.message}" for o in listed), listed)


def bad_media(field: str, why: str, legal: str) -> BadMedia:
    """A `BadMedia` about the medium in one field."""
    return BadMedia(f"{field}: {why}", [Offence(field, why, legal)])

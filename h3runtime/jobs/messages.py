"""What the engine process and its supervisor say to each other: small picklable values over one pipe.

Frames and tensors never cross; a finished clip is a path and facts (`core.Clip`). `child` and `supervisor` are the only
readers and writers.
"""

from dataclasses import dataclass

from h3runtime.core import Clip, EngineFacts, Estimate, GenerateSpec, Progress
from h3runtime.errors import H3Error


@dataclass(frozen=True, slots=True)
class Compute:
    """To the engine: make this clip. Sent only while it has no other. request_id: of the request that asked for it."""

    spec: GenerateSpec
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """To the engine: give that job up at the next step. Of no effect if it has ended."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Weigh:
    """To the engine: what would this request take? Answered also while it computes another."""

    number: int
    spec: GenerateSpec


@dataclass(frozen=True, slots=True)
class Leave:
    """To the engine: close and exit."""


@dataclass(frozen=True, slots=True)
class Beat:
    """From the engine, about once a second, whatever it is doing."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """From the engine: a sign of progress, of a job or (`job_id` None) of loading."""

    job_id: str | None
    progress: Progress


@dataclass(frozen=True, slots=True)
class Loaded:
    """From the engine: weights are resident and the warm-up passed."""

    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """From the engine, its last word: it can't serve with what it was given. `OutOfMemory` and `EngineDead` are no
    fault of that: another process may fare better."""

    error: H3Error


@dataclass(frozen=True, slots=True)
class Made:
    """From the engine: the clip is where the specification said, whole and on disk."""

    job_id: str
    clip: Clip


@dataclass(frozen=True, slots=True)
class Failed:
    """From the engine: the job ended without a clip. `EngineDead` asks for a new process."""

    job_id: str
    error: H3Error


@dataclass(frozen=True, slots=True)
class Weighed:
    """From the engine: the answer to the `Weigh` of this number."""

    number: int
    answer: Estimate | H3Error


ToEngine = Compute | Stop | Weigh | Leave
FromEngine = Beat | Advanced | Loaded | LoadFailed | Made | Failed | Weighed

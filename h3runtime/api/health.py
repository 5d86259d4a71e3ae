"""What the service answers about itself: `/live` and `/ready`. Types here are what OpenAPI shows.

`app` fills them from the engine's state; the words are service-contract "Health".
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from h3runtime import __version__
from h3runtime.api.judging.clip import MAX_TEXT_ROWS
from h3runtime.core import (
    MIN_FRAMES,
    MIN_SIDE,
    SIDE_MULTIPLE,
    BackendChoice,
    ComponentFacts,
    EngineFacts,
    LoadProgress,
)
from h3runtime.jobs.engine_state import EngineState, EngineStatus
from h3runtime.observe import memory
from h3runtime.settings import Settings


class LiveAnswer(BaseModel):
    """`alive`, or `dead` with the reason."""

    status: str
    reason: str
    version: str


class BackendAnswer(BaseModel):
    """Interchangeable backends: which one is used unless a request says otherwise, and why the others can't be."""

    default: str
    why: str
    available: list[str]
    grades: dict[str, str]
    unavailable: dict[str, str]


class ModelAnswer(BaseModel):
    """One loaded file. partition: of a transformer, `fl2va` or `ref2va`; the tasks of another one aren't served."""

    component: str
    file: str
    sha256: str
    format: str
    bytes: int
    synthetic: bool
    partition: str | None
    adaln: str | None
    qkv: str | None
    load_seconds: float
    bytes_per_second: float


class LoadingAnswer(BaseModel):
    """Which component is being read, bytes behind of all files' bytes, and bytes a second of this component."""

    component: str
    partition: str | None
    bytes_done: int
    bytes_in_all: int
    bytes_per_second: float


class ReadyAnswer(BaseModel):
    """State of the server. What only a loaded engine knows is null or empty before."""

    status: str
    stage: str
    fraction: float
    loading: LoadingAnswer | None
    reason: str
    models: list[ModelAnswer]
    checkpoint: str | None
    device: str | None
    memory: dict[str, int]
    attention: BackendAnswer | None
    linear: BackendAnswer | None
    codecs: dict[str, list[str]]
    limits: dict[str, int]
    startup: dict[str, Any]
    warnings: list[str]
    queue_depth: int
    restarts: int
    version: str


CODECS = {
    "container": ["mp4"],
    "video_codec": ["h264"],
    "pixel_format": ["yuv420p"],
    "audio_codec": ["aac"],
}


def live_answer(state: EngineState) -> LiveAnswer:
    dead = state.status is EngineStatus.DEAD
    return LiveAnswer(status="dead" if dead else "alive", reason=state.reason if dead else "", version=__version__)


def ready_answer(state: EngineState, disk_full: bool, queue_depth: int, settings: Settings) -> ReadyAnswer:
    """disk_full counts only where the engine itself is ready: any other state says more."""
    facts = state.facts
    is_full = disk_full and state.status is EngineStatus.READY
    full = f"less than {settings.disk_floor_bytes} bytes are free on the disk"
    return ReadyAnswer(
        status="disk_full" if is_full else state.status.value,
        stage=state.stage,
        fraction=state.fraction,
        loading=_loading(state.loading) if state.loading else None,
        reason=full if is_full else state.reason,
        models=[_model(component) for component in facts.components] if facts else [],
        checkpoint=facts.checkpoint if facts else None,
        device=facts.device if facts else None,
        memory=(dict(facts.memory) if facts else {}) | {"host_available_bytes": memory.available_bytes()},
        attention=_backend(facts.attention) if facts else None,
        linear=_backend(facts.linear) if facts else None,
        codecs=CODECS,
        limits=_limits(settings),
        startup=_startup(state, facts) if facts else {},
        warnings=[*(facts.warnings if facts else ()), *state.warnings],
        queue_depth=queue_depth,
        restarts=state.restarts,
        version=__version__,
    )


def _backend(choice: BackendChoice) -> BackendAnswer:
    return BackendAnswer(
        default=choice.default,
        why=choice.why,
        available=list(choice.available),
        grades=dict(choice.grades),
        unavailable=dict(choice.unavailable),
    )


def _model(component: ComponentFacts) -> ModelAnswer:
    return ModelAnswer(
        component=component.component,
        file=component.file,
        sha256=component.sha256,
        format=component.format,
        bytes=component.bytes,
        synthetic=component.synthetic,
        partition=component.partition,
        adaln=component.adaln,
        qkv=component.qkv,
        load_seconds=component.load_seconds,
        bytes_per_second=component.bytes_per_second,
    )


def _loading(progress: LoadProgress) -> LoadingAnswer:
    return LoadingAnswer(
        component=progress.component,
        partition=progress.partition,
        bytes_done=progress.bytes_done,
        bytes_in_all=progress.bytes_in_all,
        bytes_per_second=progress.bytes_per_second,
    )


def _startup(state: EngineState, facts: EngineFacts) -> dict[str, Any]:
    return {**facts.loads(), **facts.startup, "cold_start_seconds": state.cold_start_seconds}


def _limits(settings: Settings) -> dict[str, int]:
    return {
        "max_area": settings.max_area,
        "min_side": MIN_SIDE,
        "side_multiple": SIDE_MULTIPLE,
        "max_frames": settings.max_frames,
        "min_frames": MIN_FRAMES,
        "max_text_rows": MAX_TEXT_ROWS,
        "max_json_bytes": settings.max_json_bytes,
        "max_upload_bytes": settings.max_upload_bytes,
        "queue_limit": settings.queue_limit,
    }

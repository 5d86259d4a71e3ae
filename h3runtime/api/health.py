"""What the service answers about itself: `/live` and `/ready`, as plain values; the models say the same for OpenAPI.

Filled from the engine's state; the words are service-contract "Health". Probes come in hundreds, so nothing here is
asked of a disk, a device or the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from h3runtime import __version__
from h3runtime.api.auth import exposure_warning
from h3runtime.api.judging.clip import MAX_TEXT_ROWS
from h3runtime.core import (
    MIN_FRAMES,
    MIN_SIDE,
    SIDE_MULTIPLE,
    AdapterFacts,
    BackendChoice,
    ComponentFacts,
    EngineFacts,
    SelfTest,
    UpscalerFacts,
)
from h3runtime.jobs.engine_state import EngineState, EngineStatus
from h3runtime.observe import memory
from h3runtime.packing import geometry
from h3runtime.quality.levels import LEVELS, exact_choice
from h3runtime.quality.shelf import Held, why_not
from h3runtime.settings import Settings


class LiveAnswer(BaseModel):
    """`alive`, or `dead` with the reason."""

    status: str
    reason: str
    version: str


class BackendAnswer(BaseModel):
    """Interchangeable backends: which one is used unless a request says otherwise, and why the others can't be.

    exact: those that `quality: exact` takes beside the ones of grade `reference`, best first. notes: what else is to be
    known of one, such as the backend that it hands calls to.
    """

    default: str
    why: str
    available: list[str]
    grades: dict[str, str]
    unavailable: dict[str, str]
    exact: list[str]
    notes: dict[str, str]


class LinearAnswer(BackendAnswer):
    """switchable: what a request may name."""

    switchable: list[str]


class QualityAnswer(BaseModel):
    """A level of `quality`: whether requests may ask for it, why not, and what it was measured by."""

    available: bool
    reason: str
    evidence: dict[str, Any] | None


class ModelAnswer(BaseModel):
    """One loaded file. partition: of a transformer, `fl2va` or `ref2va`; the tasks of another one aren't served.

    model: the name of a trained model that isn't H3 itself, such as the embedded `h3-nano`; null for H3.
    """

    component: str
    file: str
    sha256: str
    format: str
    bytes: int
    synthetic: bool
    model: str | None
    partition: str | None
    adaln: str | None
    qkv: str | None
    load_seconds: float
    bytes_per_second: float


class ContractAnswer(BaseModel):
    """What a published adapter was trained for, and requests with it are held to; an empty list leaves a value open.

    told_by: how it was recognised. source: where the values come from. advised: schedulers without which it runs, but
    not as it was trained. alpha: at its rank, where its file has none.
    """

    name: str
    told_by: str
    source: str
    steps: list[int]
    shift: list[float]
    audio_shift: list[float]
    samplers: list[str]
    schedulers: list[str]
    tasks: list[str]
    alpha: float | None
    advised: list[str]


class FitAnswer(BaseModel):
    """How an adapter fits one transformer. fault: why it can't be applied there, empty if it can. skipped: how many
    AdaLN layers are for another width and are left out; unmatched: how many others the transformer hasn't."""

    matched: int
    total: int
    fault: str
    skipped: int
    unmatched: int


class AdapterAnswer(BaseModel):
    """An adapter of the server's folder. fault: why nobody can use it, empty if it is sound. rank: of most layers, that
    `alpha` counts for; ranks: all. needs_alpha: a request has to name one. fits: by partition of the transformer."""

    name: str
    file: str
    sha256: str
    bytes: int
    layout: str
    rank: int
    ranks: list[int]
    alpha: float | None
    needs_alpha: bool
    fits: dict[str, FitAnswer]
    contract: ContractAnswer | None
    fault: str


class UpscalerAnswer(BaseModel):
    """The latent upscaler of requests that ask for `refine`. bytes: resident, from the first of them on. embedded: it
    came with the embedded model."""

    file: str
    sha256: str
    format: str
    bytes: int
    synthetic: bool
    embedded: bool


class CheckAnswer(BaseModel):
    """One known answer. asked: of what shape. error: what `tolerance` bounds, relative L2 of the worst row unless
    `asked` says another; null where nothing came back. reason: why it failed. cached: it passed at an earlier start,
    and `seconds` are those that it took then."""

    family: str
    kernel: str
    asked: str
    passed: bool
    error: float | None
    tolerance: float
    seconds: float
    cached: bool
    reason: str


class SelfTestAnswer(BaseModel):
    """What the kernels that may run were asked before the first clip. status: `passed`, `failed` (those that failed are
    disabled) or `off`, with the reason. seconds: of this start. cached: all of it was known. kept: the file of the
    cache folder that passed checks are remembered in."""

    status: str
    reason: str
    seconds: float
    cached: bool
    kept: str
    checks: list[CheckAnswer]


class LoadingAnswer(BaseModel):
    """Which component is being read, bytes behind of all files' bytes, and bytes a second of this component."""

    component: str
    partition: str | None
    bytes_done: int
    bytes_in_all: int
    bytes_per_second: float


class ReadyAnswer(BaseModel):
    """State of the server. What only a loaded engine knows is null or empty before. loras: names that a request may
    use; `adapters` tells more of each, and of those that can't be used. upscaler: null where no request can be
    refined. residency: where the text encoder's weights are between prompts, `all` being on the device."""

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
    linear: LinearAnswer | None
    fused: BackendAnswer | None
    vae_fused: BackendAnswer | None
    vae_linear: BackendAnswer | None
    residency: str | None
    codecs: dict[str, list[str]]
    loras: list[str]
    adapters: list[AdapterAnswer]
    upscaler: UpscalerAnswer | None
    self_test: SelfTestAnswer | None
    quality: dict[str, QualityAnswer]
    limits: dict[str, int]
    startup: dict[str, Any]
    warnings: list[str]
    queue_depth: int
    restarts: int
    version: str


MODEL_FIELDS = tuple(ModelAnswer.model_fields)
ADAPTER_FIELDS = tuple(AdapterAnswer.model_fields)
UPSCALER_FIELDS = tuple(UpscalerAnswer.model_fields)
CALIBRATE = "h3runtime calibrate --prompts FILE"


def live_answer(state: EngineState) -> dict[str, str]:
    dead = state.status is EngineStatus.DEAD
    return {"status": "dead" if dead else "alive", "reason": state.reason if dead else "", "version": __version__}


def ready_answer(
    state: EngineState,
    disk_full: bool,
    queue_depth: int,
    settings: Settings,
    codecs: Mapping[str, Sequence[str]],
    held: Held,
) -> dict[str, Any]:
    """held: evidence of quality levels, as it was read last. disk_full counts only where the
    engine itself is ready: any other state says more."""
    exposed = [warning] if (warning := exposure_warning(settings)) else []
    facts = state.facts
    is_full = disk_full and state.status is EngineStatus.READY
    full = f"less than {settings.disk_floor_bytes} bytes are free on the disk"
    return {
        "status": "disk_full" if is_full else state.status.value,
        "stage": state.stage,
        "fraction": state.fraction,
        "loading": asdict(state.loading) if state.loading else None,
        "reason": full if is_full else state.reason,
        "models": [_model(component) for component in facts.components] if facts else [],
        "checkpoint": facts.checkpoint if facts else None,
        "device": facts.device if facts else None,
        "memory": (dict(facts.memory) if facts else {}) | {"host_available_bytes": memory.available_bytes()},
        "attention": _backend(facts.attention) if facts else None,
        "linear": _backend(facts.linear) | {"switchable": list(facts.linear.available)} if facts else None,
        "fused": _backend(facts.fused) if facts and facts.fused else None,
        "vae_fused": _backend(facts.vae_fused) if facts and facts.vae_fused else None,
        "vae_linear": _backend(facts.vae_linear) if facts and facts.vae_linear else None,
        "residency": facts.residency if facts else None,
        "codecs": codecs,
        "loras": [adapter.name for adapter in facts.adapters if not adapter.fault] if facts else [],
        "adapters": [_adapter(adapter) for adapter in facts.adapters] if facts else [],
        "upscaler": _upscaler(facts.upscaler) if facts and facts.upscaler else None,
        "self_test": _self_test(facts.self_test) if facts and facts.self_test else None,
        "quality": quality_answer(facts, held),
        "limits": limits_answer(settings),
        "startup": _startup(state, facts) if facts else {},
        "warnings": [*(facts.warnings if facts else ()), *state.warnings, *held.faults, *exposed],
        "queue_depth": queue_depth,
        "restarts": state.restarts,
        "version": __version__,
    }


def quality_answer(facts: EngineFacts | None, held: Held) -> dict[str, Any]:
    """A `QualityAnswer` for each level. Without an engine nobody knows what counts."""
    inexact = "nothing exact can run on what is loaded" if facts and exact_choice(facts) is None else ""
    exact = {"available": not inexact, "reason": inexact, "evidence": None}
    return {"exact": exact} | {level: _level(level, facts, held) for level in LEVELS}


def _level(level: str, facts: EngineFacts | None, held: Held) -> dict[str, Any]:
    """Each of `measured` counts for requests of its `bucket` (canvas, frames and steps from these up to twice as many),
    sampler, scheduler and shifts; `unusable` says why what it chose can't run now, and is empty where it can."""
    if facts is None:
        return {"available": False, "reason": "nothing is loaded yet", "evidence": None}
    found = held.of(level, facts)
    if not found:
        told = f"there is no evidence for the loaded checkpoint: {CALIBRATE} --level {level} makes some"
        return {"available": False, "reason": told, "evidence": None}
    reasons = [why_not(evidence, facts) for evidence in found]
    rows = [evidence.told | {"unusable": reason} for evidence, reason in zip(found, reasons, strict=True)]
    usable = not all(reasons)
    return {"available": usable, "reason": "" if usable else reasons[0], "evidence": {"measured": rows}}


def limits_answer(settings: Settings) -> dict[str, int]:
    """What a request may ask for at most. max_packed_rows: of the largest canvas and the longest clip, with the longest
    text and no inputs but those that it shows; a job may be refused for want of memory long before."""
    longest = geometry.frames_at_most(settings.max_frames) or MIN_FRAMES
    video = geometry.latent_frames(longest) * (settings.max_area // SIDE_MULTIPLE**2)
    return {
        "max_area": settings.max_area,
        "min_side": MIN_SIDE,
        "side_multiple": SIDE_MULTIPLE,
        "max_frames": settings.max_frames,
        "min_frames": MIN_FRAMES,
        "max_text_rows": MAX_TEXT_ROWS,
        "max_packed_rows": MAX_TEXT_ROWS + 2 * geometry.audio_latents(longest) + video,
        "max_json_bytes": settings.max_json_bytes,
        "max_upload_bytes": settings.max_upload_bytes,
        "queue": settings.queue_limit,
        "queue_limit": settings.queue_limit,
    }


def _backend(choice: BackendChoice) -> dict[str, Any]:
    return {
        "default": choice.default,
        "why": choice.why,
        "available": list(choice.available),
        "grades": dict(choice.grades),
        "unavailable": dict(choice.unavailable),
        "exact": list(choice.exact),
        "notes": dict(choice.notes),
    }


def _adapter(adapter: AdapterFacts) -> dict[str, Any]:
    told = {name: getattr(adapter, name) for name in ADAPTER_FIELDS}
    fits = {
        partition: asdict(fit) | {"skipped": len(fit.skipped), "unmatched": len(fit.unmatched)}
        for partition, fit in adapter.fits.items()
    }
    contract = None if adapter.contract is None else _listed(asdict(adapter.contract))
    return _listed(told) | {"fits": fits, "contract": contract}


def _upscaler(upscaler: UpscalerFacts) -> dict[str, Any]:
    return {name: getattr(upscaler, name) for name in UPSCALER_FIELDS}


def _self_test(found: SelfTest) -> dict[str, Any]:
    checks = [asdict(check) | {"passed": check.passed} for check in found.checks]
    status = "off" if found.why_off else "failed" if found.failed else "passed"
    return {
        "status": status,
        "reason": found.why_off or "; ".join(found.failed.values()),
        "seconds": found.seconds,
        "cached": bool(found.checks) and all(check.cached for check in found.checks),
        "kept": found.kept,
        "checks": checks,
    }


def _listed(told: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def _model(component: ComponentFacts) -> dict[str, Any]:
    return {name: getattr(component, name) for name in MODEL_FIELDS}


def _startup(state: EngineState, facts: EngineFacts) -> dict[str, Any]:
    return {**facts.loads(), **facts.startup, "cold_start_seconds": state.cold_start_seconds}

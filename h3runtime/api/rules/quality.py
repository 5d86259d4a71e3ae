"""A quality level beside everything else that a request says: whether evidence speaks for it, and what it chooses.

Evidence counts for the weights, device and version it was measured on, one bucket of canvas, length and steps, and one
schedule; without adapters and without a second pass, which nobody measured. What it chose takes the place of fields
that the request leaves open; one that says otherwise contradicts it (service-contract, `quality`). Asks the shelf; fed
by `admission` and the command line.
"""

from __future__ import annotations

from collections.abc import Iterator

from h3runtime.api.request import GenerateBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import EngineFacts, Task
from h3runtime.packing.geometry import Size
from h3runtime.quality.bucket import Bucket, Sampling
from h3runtime.quality.evidence import Evidence
from h3runtime.quality.levels import Choice
from h3runtime.quality.shelf import Held, Use

LEGAL = "'exact', or none"


def judge_quality(
    body: GenerateBody, task: Task, size: Size, frames: int, facts: EngineFacts, held: Held, verdict: Verdict
) -> Evidence | None:
    """What speaks for the level that the request asks for; None where it asks for none, or for `exact`.

    size, frames: of the clip, resolved.
    """
    if body.quality is None or body.quality == "exact" or "quality" in verdict.broken:
        return None
    unmeasured = [name for name, there in (("loras", _active(body)), ("refine", body.refine is not None)) if there]
    for name in unmeasured:
        verdict.refuse(name, f"quality {body.quality!r} was measured without", "leave it out, or quality")
    # What is wrong with it may be its size: which evidence it needs is then asked once that is right.
    is_sound = not (verdict.offences or verdict.broken)
    evidence, why = held.find(body.quality, facts, _use(body, task, size, frames) if is_sound else None)
    if evidence is None:
        if why:
            told = f"{why}; measure it with the settings of this server: {_command(body, size, frames)}"
            verdict.refuse("quality", told, LEGAL)
        return None
    for field, value in _contradictions(body, evidence.choice):
        told = f"{value!r:.60} contradicts quality {body.quality!r}, which was measured with {evidence.choice.told}"
        verdict.refuse(field, told, "leave it out")
    return evidence


def levelled(body: GenerateBody, evidence: Evidence | None) -> GenerateBody:
    """The request as if it had named what its level chose."""
    if evidence is None:
        return body
    return body.model_copy(update={**evidence.choice.fields(), "attention_plan": None})


def _contradictions(body: GenerateBody, choice: Choice) -> Iterator[tuple[str, object]]:
    """Fields that say anything else, but those that contradict every level and are told by `reuse`."""
    for field in ("attention", "linear"):
        if (named := getattr(body, field)) not in (None, getattr(choice, field)):
            yield field, named
    for index, entry in enumerate(body.attention_plan or ()):
        if entry.attention != choice.attention:
            yield f"attention_plan[{index}].attention", entry.attention
    if body.cache_mode == "none" != choice.cache_mode:
        yield "cache_mode", body.cache_mode


def _use(body: GenerateBody, task: Task, size: Size, frames: int) -> Use:
    sampling = Sampling(body.sampler, body.scheduler, body.shift, body.audio_shift)
    return Use(task.runs_on, Bucket.of(size.width, size.height, frames, body.steps), sampling)


def _active(body: GenerateBody) -> bool:
    return any(lora.strength for lora in body.loras)


def _command(body: GenerateBody, size: Size, frames: int) -> str:
    """What measures the level for this request."""
    told = f"h3runtime calibrate --prompts FILE --level {body.quality} --size {size.width}x{size.height}x{frames}"
    told += f" --steps {body.steps}"
    usual = type(body).model_fields
    for field in ("sampler", "scheduler", "shift", "audio_shift"):
        if (value := getattr(body, field)) != usual[field].default:
            told += f" --{field.replace('_', '-')} {value}"
    return told

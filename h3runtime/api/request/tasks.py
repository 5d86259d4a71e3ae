"""The body of `POST /generate`: one wide body that the rules read, and a narrower one for each task.

All fields stand once, in `GenerateBody`; a task's body is one that takes fewer inputs, so a field is judged in the same
words for every task. `task` tells them apart; where it is left out, the inputs do. Rules between fields (canvas,
length, frames of guides) are in `rules`; `read` feeds raw JSON in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from h3runtime.api.prompt.body import MAX_PROMPT, PromptBody
from h3runtime.api.request.inputs import KeyframeBody, MasksBody, ReferenceBody
from h3runtime.api.request.media import MAX_MEDIA, ContinueBody, MediaBody, SourceBody
from h3runtime.api.request.options import DiagnosticsBody, FormatBody
from h3runtime.api.request.speed import MAX_ENTRIES, MAX_LORAS, SUBSAMPLE_FACTORS, LoraBody, PlanBody, RefineBody
from h3runtime.api.request.values import MAX_SEED, RANDOM_SEED, read_aspect, read_diagnostics, read_prompt, read_seed
from h3runtime.api.strict import Strict, refusal
from h3runtime.core import (
    MAX_REUSE_THRESHOLD,
    MAX_STEPS,
    MIN_SIDE,
    REUSE_SUBSAMPLE,
    REUSE_THRESHOLDS,
    REUSE_WINDOW,
    SHIFT_RANGE,
    SIDE_MULTIPLE,
    Task,
)

GUIDES = ("first_frame", "last_frame", "continue_from", "keyframes")
"""Fields that anchor something at frames of the target, in the order of the packed sequence."""
MAX_CLIPS = 10
"""Of one request (service-contract, `n`)."""
PRIORITIES = (-10, 10)
INPUTS = (*GUIDES, "references")
"""Fields that decide the task. `source` and `masks` go with any."""


THRESHOLDS = ", ".join(f"{mode} {threshold:g}" for mode, threshold in REUSE_THRESHOLDS.items())
PROMPT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_PROMPT, "pattern": r"\S"}
SIDE_SCHEMA: dict[str, Any] = {"minimum": MIN_SIDE, "multipleOf": SIDE_MULTIPLE}
"""For OpenAPI; the rule itself says which sides are near (`rules.canvas`)."""
SEED_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": RANDOM_SEED, "maximum": MAX_SEED},
        {"type": "string", "pattern": "^(-1|[0-9]{1,20})$"},
    ]
}


class GenerateBody(Strict):
    """One clip to make. Everything but the prompt has a default; an input that isn't given is None or empty."""

    excluded: ClassVar[frozenset[str]] = frozenset()
    """Inputs that a narrower body doesn't take."""

    prompt: Annotated[
        Annotated[str, WithJsonSchema(PROMPT_SCHEMA)] | PromptBody,
        BeforeValidator(read_prompt),
    ] = Field(
        description="What happens in the clip, and what is heard. A text goes to the model as it is, an object is "
        "assembled into the model's own form."
    )
    task: Literal["t2va", "i2va", "l2va", "fl2va", "ref2va"] | None = Field(
        None, description="Inferred from the inputs."
    )
    width: int | None = Field(None, description="Multiple of 32.", json_schema_extra=SIDE_SCHEMA)
    height: int | None = Field(None, description="Multiple of 32.", json_schema_extra=SIDE_SCHEMA)
    aspect_ratio: Annotated[str | None, BeforeValidator(read_aspect)] = Field(
        None, description='"W:H", instead of width and height.'
    )
    short_edge: int | None = Field(None, description="256..768, multiple of 32; of a canvas that is derived.")
    frames: int | None = Field(None, description="17n+5. Default: 124, or as many as `source` has.")
    seconds: float | None = Field(None, gt=0, description="The least legal length that is as long.")
    steps: int = Field(12, ge=1, le=MAX_STEPS, description="Evaluations of the model.")
    sampler: Literal["res_multistep", "euler"] = "res_multistep"
    scheduler: Literal["beta", "simple", "linear"] = "beta"
    shift: float = Field(12.0, ge=SHIFT_RANGE[0], le=SHIFT_RANGE[1], description="Sigma shift of the picture.")
    audio_shift: float = Field(3.0, ge=SHIFT_RANGE[0], le=SHIFT_RANGE[1], description="Sigma shift of the sound.")
    seed: Annotated[int, BeforeValidator(read_seed), WithJsonSchema(SEED_SCHEMA)] = Field(
        RANDOM_SEED, description="0..2^64-1, also as a decimal text; -1 draws one."
    )
    first_frame: MediaBody | None = Field(None, description="A picture: the first frame.")
    last_frame: MediaBody | None = Field(None, description="A picture: the last frame.")
    continue_from: ContinueBody | None = Field(None, description="The clip that this one continues.")
    keyframes: Annotated[tuple[KeyframeBody, ...], Field(strict=False, max_length=MAX_MEDIA)] = Field(
        (), description="Guides at any frames of the clip."
    )
    references: Annotated[tuple[ReferenceBody, ...], Field(strict=False, max_length=MAX_MEDIA)] = Field(
        (), description="Pictures, clips and sounds to take after, in the order in which the prompt numbers them."
    )
    source: SourceBody | None = Field(None, description="A clip to edit.")
    masks: MasksBody | None = Field(None, description="What of `source` is generated anew.")
    attention: str | None = Field(None, description="A name that `/ready` lists.")
    linear: str | None = Field(None, description="A name that `/ready` lists.")
    attention_plan: Annotated[tuple[PlanBody, ...] | None, Field(strict=False, max_length=MAX_ENTRIES)] = Field(
        None, description="Attention backend by step, instead of `attention`; covers every step once."
    )
    quality: Literal["exact", "high", "medium", "low"] | None = Field(
        None, description="Chooses the backends; all but exact need evidence for what is loaded."
    )
    cache_mode: Literal["none", "easycache", "h3_cache", "first_block"] | None = Field(
        None,
        description="Makes some steps from earlier ones instead of computing them, while this stays below "
        "cache_threshold, for picture and sound each: the relative change of the model's answer that the latents' own "
        "change foretells, summed since the last computed step (easycache) or of the step itself (h3_cache), or the "
        "change of what the first block adds since the last computed step (first_block). Default: none.",
    )
    cache_threshold: float | None = Field(
        None,
        ge=0,
        le=MAX_REUSE_THRESHOLD,
        description=f"Of a cache mode: change below which a step is reused; 0 reuses none. Default: {THRESHOLDS}.",
    )
    cache_start_percent: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Of a cache mode: share of the run before which every step is computed. "
        f"Default: {REUSE_WINDOW[0]:g}.",
    )
    cache_end_percent: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Of a cache mode: share of the run from which on every step is computed. "
        f"Default: {REUSE_WINDOW[1]:g}.",
    )
    cache_subsample_factor: int | None = Field(
        None,
        ge=SUBSAMPLE_FACTORS[0],
        le=SUBSAMPLE_FACTORS[1],
        description="Of a cache mode: each how many-th latent of a row and line, or packed row, is compared. "
        f"Default: {REUSE_SUBSAMPLE}.",
    )
    cache_forecast: Literal["taylor", "hold", "delta"] | None = Field(
        None,
        description="Of easycache and h3_cache, what a reused step is made of: the line through the last two computed "
        "velocities (taylor), the last one (hold), or what the last one added, D - x, as it was (delta). "
        "Default: taylor.",
    )
    loras: Annotated[tuple[LoraBody, ...], Field(strict=False, max_length=MAX_LORAS)] = Field(
        (), description="Adapters, by names that `/ready` lists."
    )
    refine: RefineBody | None = Field(None, description="A second pass on a larger canvas, where the server can.")
    n: int = Field(1, ge=1, le=MAX_CLIPS, description="Clips to make, with seeds that count up from `seed`.")
    priority: int = Field(0, ge=PRIORITIES[0], le=PRIORITIES[1], description="Higher ones are made first.")
    callback_url: str | None = Field(None, description="Told when the job ends; only hosts that the server allows.")
    output: str | None = Field(None, description="Bare file name with the container's suffix.")
    overwrite: bool = Field(False, description="Whether `output` may replace a file.")
    format: FormatBody | None = Field(None, description="How the clip is encoded.")
    save_latents: bool = Field(False, description="Also write the final latents beside the clip.")
    diagnostics: Annotated[
        DiagnosticsBody | None,
        BeforeValidator(read_diagnostics),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, DiagnosticsBody.model_json_schema()]}),
    ] = Field(None, description="Step times, hashes and inputs in the job.")

    @model_validator(mode="after")
    def _takes_its_inputs(self) -> GenerateBody:
        strangers = [name for name in INPUTS if name in self.excluded and is_given(self, name)]
        if strangers:
            raise refusal(f"takes no {', '.join(strangers)}", "another task")
        return self


class T2vaBody(GenerateBody):
    """A clip from a prompt alone."""

    excluded: ClassVar[frozenset[str]] = frozenset(INPUTS)
    task: Literal["t2va"] | None = None


class I2vaBody(GenerateBody):
    """A clip that starts with a picture or another clip's end, or has guides at frames in between."""

    excluded: ClassVar[frozenset[str]] = frozenset({"last_frame", "references"})
    task: Literal["i2va"] | None = None


class L2vaBody(GenerateBody):
    """A clip that ends with a picture."""

    excluded: ClassVar[frozenset[str]] = frozenset({"first_frame", "continue_from", "references"})
    task: Literal["l2va"] | None = None


class Fl2vaBody(GenerateBody):
    """A clip of which both ends are given."""

    excluded: ClassVar[frozenset[str]] = frozenset({"references"})
    task: Literal["fl2va"] | None = None


class Ref2vaBody(GenerateBody):
    """A clip that takes after references. Guides may stand beside them."""

    task: Literal["ref2va"] | None = None


BODIES: Mapping[Task, type[GenerateBody]] = {
    Task.T2VA: T2vaBody,
    Task.I2VA: I2vaBody,
    Task.L2VA: L2vaBody,
    Task.FL2VA: Fl2vaBody,
    Task.REF2VA: Ref2vaBody,
}


def is_given(body: GenerateBody, name: str) -> bool:
    return getattr(body, name) not in (None, ())


def infer_task(*, references: bool, guides: bool, first: bool, last: bool) -> Task:
    """The task that the inputs mean: references and guides given at all, and a guide at the first or last frame."""
    if references:
        return Task.REF2VA
    if last:
        return Task.FL2VA if first else Task.L2VA
    return Task.I2VA if guides else Task.T2VA


def task_of(raw: Mapping[str, Any]) -> Task:
    """The task of a raw request: the stated one if there is such a task, else what the names of its inputs say.

    Without the clip's length a keyframe at the last frame is known as such only by -1: `rules` has the last word.
    """
    stated = raw.get("task")
    if isinstance(stated, str) and stated in list(Task):
        return Task(stated)
    given = {name for name in INPUTS if raw.get(name) not in (None, [])}
    keyframes = raw.get("keyframes")
    at = [item.get("frame") for item in keyframes if isinstance(item, dict)] if isinstance(keyframes, list) else []
    return infer_task(
        references="references" in given,
        guides=bool(given),
        first=bool(given & {"first_frame", "continue_from"}) or 0 in at,
        last="last_frame" in given or -1 in at,
    )


TaskBody = Annotated[
    Annotated[T2vaBody, Tag("t2va")]
    | Annotated[I2vaBody, Tag("i2va")]
    | Annotated[L2vaBody, Tag("l2va")]
    | Annotated[Fl2vaBody, Tag("fl2va")]
    | Annotated[Ref2vaBody, Tag("ref2va")],
    Discriminator(task_of),
]

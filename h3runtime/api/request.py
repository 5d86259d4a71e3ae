"""The body of `POST /generate`: its fields, their types and the ranges that hold whatever else is in the request.

Rules between fields (canvas, length, task against inputs, names) are in `rules`; media are opened in `media`. `body`
feeds raw JSON in, `admission` reads the result. The contract is service-contract "POST /generate" with its small print:
unknown fields, a null outside `NULLABLE`, a boolean that isn't one and a non-finite number are errors, all reported at
once under the client's own names.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator
from pydantic import model_validator as validates_model
from pydantic_core import ErrorDetails, PydanticCustomError

from h3runtime.core import MAX_STEPS, SHIFT_RANGE
from h3runtime.errors import Offence

ABSENT_WHEN_NULL = frozenset({"source", "masks", "continue_from", "refine"})
"""Inputs of the contract that this version doesn't take: a client that spells out that it gives none is right."""
NULLABLE = frozenset({"first_frame", "last_frame", "format"}) | ABSENT_WHEN_NULL
"""Where an explicit null means "not given" (service-contract, small print)."""
MAX_PROMPT = 7000
SHIFTS = f"a number above 0, from {SHIFT_RANGE[0]:g} to {SHIFT_RANGE[1]:g}"
MAX_SEED = 2**64 - 1
RANDOM_SEED = -1
SHORT_EDGES = tuple(range(256, 769, 32))
AUDIO_BITRATES = (16_000, 384_000)
"""Bits a second: what the AAC encoder takes for stereo at 32 kHz (6144 bits a frame and channel at the top)."""


def _refuse(kind: str, message: str, legal: str) -> PydanticCustomError:
    # Braces would be read as a template.
    return PydanticCustomError(kind, "{text}", {"text": message, "legal": legal})


def _shown(value: Any) -> str:
    """A value as an error names it: short, plain ASCII whatever it holds, and but for texts as JSON has it."""
    text = ascii(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _prompt(value: str) -> str:
    legal = f"1..{MAX_PROMPT} characters, not only white space"
    if not value.strip():
        raise _refuse("prompt", "is empty or only white space", legal)
    if len(value) > MAX_PROMPT:
        raise _refuse("prompt", f"has {len(value)} characters", legal)
    return value


def _seed(value: Any) -> int:
    """An integer, or a decimal text of one: JSON numbers lose digits above 2^53 in many clients."""
    legal = f"an integer 0..{MAX_SEED} or its decimal text, or -1 for a random one"
    if isinstance(value, str) and re.fullmatch(r"-1|[0-9]{1,40}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not RANDOM_SEED <= value <= MAX_SEED:
        raise _refuse("seed", f"{_shown(value)} is no seed", legal)
    return value


def _aspect(value: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}:[1-9][0-9]{0,4}", value):
        raise _refuse("aspect", f"{_shown(value)} is no ratio", '"W:H" of two whole numbers, such as "16:9"')
    return value


def _bitrate(value: Any) -> Any:
    """Bits a second, or kilobits with a `k`, as encoders are told."""
    low, high = AUDIO_BITRATES
    bits = int(value[:-1]) * 1000 if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}k", value) else value
    if isinstance(bits, bool) or not isinstance(bits, int) or not low <= bits <= high:
        raise _refuse(
            "bitrate", f"{_shown(value)} is no bit rate", f'{low}..{high} bits a second, or "{low // 1000}k"..'
        )
    return bits


def _diagnostics(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class MediaBody(_Strict):
    """One medium: exactly one of `upload` (a part of this multipart request), `data` (a data URL), `path`."""

    upload: str | None = Field(None, description="Name of the file part that holds it.")
    data: str | None = Field(None, description="`data:image/png;base64,...`")
    path: str | None = Field(None, description="Relative to the media root, where the server has one.")
    url: str | None = Field(None, description="Refused: this server fetches nothing.")

    @field_validator("url")
    @classmethod
    def _no_fetching(cls, _: str | None) -> str | None:
        raise _refuse("url", "this server fetches from no host", "upload or data")

    @validates_model(mode="after")
    def _one_source(self) -> MediaBody:
        if len(self.model_fields_set) != 1:
            raise _refuse("media", f"names {len(self.model_fields_set)} sources", "one of upload, data, path")
        return self


class FormatBody(_Strict):
    """How the clip is encoded. Fields with a single legal value say what is made, and may be left out."""

    container: Literal["mp4"] = "mp4"
    video_codec: Literal["h264"] = "h264"
    crf: int | None = Field(default=None, ge=0, le=51)
    pixel_format: Literal["yuv420p"] = "yuv420p"
    audio_codec: Literal["aac"] = "aac"
    audio_bitrate: Annotated[
        int | None, BeforeValidator(_bitrate), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
    ] = None
    sample_rate: Literal[32000] = 32000
    fps: Literal[24] = 24
    loudness: Literal["comfyui", "none"] = "comfyui"


class DiagnosticsBody(_Strict):
    """What a request for diagnostics may ask for besides the figures."""

    latents: bool = False


class GenerateBody(_Strict):
    """One clip to make. Everything but the prompt has a default."""

    prompt: Annotated[str, BeforeValidator(lambda v: _prompt(v) if isinstance(v, str) else v)] = Field(
        min_length=1, max_length=MAX_PROMPT
    )
    task: Literal["t2va", "i2va", "l2va", "fl2va"] | None = Field(None, description="Inferred from the inputs.")
    width: int | None = Field(None, description="Multiple of 32.")
    height: int | None = Field(None, description="Multiple of 32.")
    aspect_ratio: Annotated[str | None, BeforeValidator(lambda v: _aspect(v) if isinstance(v, str) else v)] = None
    short_edge: int | None = Field(None, description="256..768, multiple of 32.")
    frames: int | None = Field(None, description="17n+5.")
    seconds: float | None = Field(None, gt=0)
    steps: int = Field(12, ge=1, le=MAX_STEPS)
    sampler: Literal["res_multistep", "euler"] = "res_multistep"
    scheduler: Literal["beta", "simple", "linear"] = "beta"
    shift: float = Field(12.0, ge=SHIFT_RANGE[0], le=SHIFT_RANGE[1])
    audio_shift: float = Field(3.0, ge=SHIFT_RANGE[0], le=SHIFT_RANGE[1])
    seed: Annotated[
        int, BeforeValidator(_seed), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
    ] = RANDOM_SEED
    first_frame: MediaBody | None = None
    last_frame: MediaBody | None = None
    attention: str | None = Field(None, description="A name that `/ready` lists.")
    linear: str | None = Field(None, description="A name that `/ready` lists.")
    output: str | None = Field(None, description="Bare file name ending in .mp4.")
    overwrite: bool = False
    format: FormatBody | None = None
    save_latents: bool = False
    diagnostics: Annotated[
        DiagnosticsBody | None,
        BeforeValidator(_diagnostics),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "object"}]}),
    ] = None


@dataclass(frozen=True, slots=True)
class ReadBody:
    """What could be read: `body` holds every field that is right by itself, `broken` names the others."""

    body: GenerateBody
    broken: frozenset[str]
    offences: tuple[Offence, ...]


def read_body(raw: Mapping[str, Any]) -> ReadBody:
    """Judge every field by itself. Broken ones are left out of `body`, so that the rules can judge the rest."""
    raw = {name: value for name, value in raw.items() if value is not None or name not in ABSENT_WHEN_NULL}
    wrong: dict[str, list[Offence]] = {name: [] for name in raw}
    for name in GenerateBody.model_fields:
        wrong[name] = [_null(path) for path in _nulls(raw.get(name, ""), name) if path not in NULLABLE]
    try:
        body = GenerateBody.model_validate({name: value for name, value in raw.items() if not wrong[name]})
    except ValidationError as error:
        for item in error.errors(include_url=False):
            # A null was left out above, and must not be called missing as well.
            if not (item["type"] == "missing" and wrong[str(item["loc"][0])]):
                wrong[str(item["loc"][0])].append(_offence(item))
        right = {name: value for name, value in raw.items() if not wrong[name]}
        # A stand-in: a request with a broken prompt is refused, but its other fields are still to be judged.
        body = GenerateBody.model_validate({"prompt": "-"} | right)
    broken = frozenset(name for name, offences in wrong.items() if offences)
    return ReadBody(body, broken, tuple(offence for offences in wrong.values() for offence in offences))


def _nulls(value: Any, path: str) -> list[str]:
    """Paths of all nulls: `seed`, `format.crf`."""
    if value is None:
        return [path]
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in _nulls(item, f"{path}.{name}")]
    return []


def _null(path: str) -> Offence:
    return Offence(path, "null is not a value here", "a value, or leave the field out")


def _offence(item: ErrorDetails) -> Offence:
    field = ".".join(str(part) for part in item["loc"])
    context = item.get("ctx", {})
    kind = item["type"]
    if kind == "extra_forbidden":
        return _unknown(field, item["loc"])
    if kind == "missing":
        return Offence(field, "is missing", RANGES.get(field, "a value"))
    if "legal" in context:
        return Offence(field, str(context["text"]), str(context["legal"]))
    message, legal = WORDS.get(kind, ("{value} is refused", item["msg"]))
    filled = {"value": _shown(item["input"]), **{name: str(part) for name, part in context.items()}}
    return Offence(field, message.format(**filled), RANGES.get(field) or legal.format(**filled))


def _unknown(field: str, location: tuple[int | str, ...]) -> Offence:
    models: dict[int | str, type[BaseModel]] = {
        "first_frame": MediaBody,
        "last_frame": MediaBody,
        "format": FormatBody,
        "diagnostics": DiagnosticsBody,
    }
    known = list((models[location[0]] if len(location) > 1 else GenerateBody).model_fields)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return Offence(field, f"is not a field that this server knows{hint}", ", ".join(known))


WORDS: Mapping[str, tuple[str, str]] = {
    "string_type": ("{value} is not a text", "a text"),
    "int_type": ("{value} is not a whole number", "a whole number"),
    "int_from_float": ("{value} is not a whole number", "a whole number"),
    "float_type": ("{value} is not a number", "a number"),
    "bool_type": ("{value} is neither true nor false", "true, false"),
    "finite_number": ("{value} is not finite", "a finite number"),
    "literal_error": ("{value} is not one of the legal values", "{expected}"),
    "greater_than": ("{value} is too small", "above {gt}"),
    "greater_than_equal": ("{value} is too small", "at least {ge}"),
    "less_than_equal": ("{value} is too large", "at most {le}"),
    "model_type": ("{value} is not an object", "an object"),
    "model_attributes_type": ("{value} is not an object", "an object"),
}
"""Kind of error, as the library names it -> what we say of the value, and of what would be legal."""
RANGES: Mapping[str, str] = {
    "steps": f"1..{MAX_STEPS}",
    "format.crf": "0..51",
    "first_frame": 'one of {"upload": PART}, {"data": DATA_URL}, {"path": PATH}',
    "last_frame": 'one of {"upload": PART}, {"data": DATA_URL}, {"path": PATH}',
    "prompt": f"a text of 1..{MAX_PROMPT} characters, not only white space",
    "diagnostics": 'true, false or {"latents": true}',
    "seconds": "a number above 0",
    "shift": SHIFTS,
    "audio_shift": SHIFTS,
    "seed": "an integer, its decimal text, or -1",
}
"""What is legal, where the kind of error alone can't say it."""

"""An error of the validation library -> an offence in our words, under the name that the client used.

Fed by `read`. Names are bracketed where they go into lists (`references[0].source`); a field that no body has is
answered with the nearest one of the body that it stands in, however deep that is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from h3runtime.api.prompt.body import PROMPT_LEGAL
from h3runtime.api.request.inputs import SOUND_LEGAL
from h3runtime.api.request.speed import STEPS_LEGAL, SUBSAMPLE_FACTORS
from h3runtime.api.request.tasks import MAX_CLIPS, PRIORITIES, GenerateBody
from h3runtime.api.strict import bodies_in, shown
from h3runtime.core import MAX_REUSE_THRESHOLD, MAX_STEPS, SHIFT_RANGE, Task
from h3runtime.errors import Offence

Location = tuple[int | str, ...]

SHIFTS = f"a number above 0, from {SHIFT_RANGE[0]:g} to {SHIFT_RANGE[1]:g}"
MEDIUM = 'one of {"upload": PART}, {"data": DATA_URL}, {"path": PATH}, {"url": URL}'
CLIP = f'{{"job": ID}} or {MEDIUM}'
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
    "too_long": ("has {actual_length} items", "at most {max_length}"),
    "too_short": ("has {actual_length} items", "at least {min_length}"),
    "string_too_long": ("is too long", "at most {max_length} characters"),
    "string_pattern_mismatch": ("{value} does not have the right form", "a text like {pattern}"),
    "tuple_type": ("{value} is not a list", "a list"),
    "model_type": ("{value} is not an object", "an object"),
    "model_attributes_type": ("{value} is not an object", "an object"),
}
"""Kind of error, as the library names it -> what we say of the value, and of what would be legal."""
SIZES = frozenset({"too_long", "too_short", "string_too_long"})
"""Kinds that say what is legal better than `RANGES`."""
RANGES: Mapping[str, str] = {
    "prompt": f"a text of {PROMPT_LEGAL}, or an object",
    "task": ", ".join(repr(task.value) for task in Task),
    "seconds": "a number above 0",
    "steps": f"1..{MAX_STEPS}",
    "shift": SHIFTS,
    "audio_shift": SHIFTS,
    "seed": "an integer, its decimal text, or -1",
    "first_frame": MEDIUM,
    "last_frame": MEDIUM,
    "continue_from": CLIP,
    "keyframes": "a list of {image | video, frame, audio}",
    "keyframes[].image": MEDIUM,
    "keyframes[].video": MEDIUM,
    "keyframes[].audio": SOUND_LEGAL,
    "references": "a list of {type, source, audio, start, size}",
    "references[].source": MEDIUM,
    "references[].audio": SOUND_LEGAL,
    "references[].start": "seconds, 0 or more",
    "source": CLIP,
    "masks": "{video: MEDIUM, audio: [{start, end, value}]}",
    "masks.video": MEDIUM,
    "masks.audio": "a list of {start, end, value}",
    "masks.audio[].value": "0..1",
    "diagnostics": 'true, false or {"latents": true}',
    "format.crf": "0..51",
    "attention_plan": "a list of {steps, every, attention}",
    "attention_plan[].steps": STEPS_LEGAL,
    "attention_plan[].every": f"1..{MAX_STEPS}",
    "quality": "'exact', or 'high', 'medium', 'low' with evidence for what is loaded",
    "cache_threshold": f"0..{MAX_REUSE_THRESHOLD:g}",
    "cache_start_percent": "0..1",
    "cache_end_percent": "0..1",
    "cache_subsample_factor": f"{SUBSAMPLE_FACTORS[0]}..{SUBSAMPLE_FACTORS[1]}",
    "loras": "a list of {name, strength, alpha, partial}",
    "refine": "{scale, steps, denoise}, or none",
    "refine.scale": "1.5..2",
    "refine.denoise": "0.001..1",
    "n": f"1..{MAX_CLIPS}",
    "priority": f"{PRIORITIES[0]}..{PRIORITIES[1]}",
}
"""Field, list indices left out -> what is legal, where the kind of error alone can't say it."""


def path_of(location: Location) -> str:
    """`("references", 0, "source")` -> `references[0].source`."""
    joined = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return joined.removeprefix(".")


def offence_of(location: Location, item: ErrorDetails) -> Offence:
    field, context = path_of(location), item.get("ctx", {})
    known = RANGES.get(re.sub(r"\[[0-9]+\]", "[]", field))
    if item["type"] == "extra_forbidden":
        return _unknown(location)
    if item["type"] == "missing":
        return Offence(field, "is missing", known or "a value")
    if "legal" in context:
        return Offence(field, str(context["text"]), str(context["legal"]))
    message, legal = WORDS.get(item["type"], ("{value} is refused", item["msg"]))
    filled = {"value": shown(item["input"]), **{name: str(part) for name, part in context.items()}}
    says_best = known is None or item["type"] in SIZES
    return Offence(field, message.format(**filled), legal.format(**filled) if says_best else str(known))


def null_offence(location: Location) -> Offence:
    return Offence(path_of(location), "null is not a value here", "a value, or leave the field out")


def _unknown(location: Location) -> Offence:
    known = list(_body_at(location[:-1]).model_fields)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return Offence(path_of(location), f"is not a field that this server knows{hint}", ", ".join(known))


def _body_at(location: Location) -> type[BaseModel]:
    """The body that stands at a place of the request."""
    body: type[BaseModel] = GenerateBody
    for part in location:
        if isinstance(part, str):
            body = next(bodies_in(body.model_fields[part].annotation))
    return body

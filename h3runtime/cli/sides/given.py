"""A side as it is written, `linear=nvfp4_emulated,steps=8`, as fields of a request and settings of an engine.

Does: split, name what there isn't, and read values as JSON where they are. Does not: judge values, which the rules of
requests and settings do (`asked`). Fed by the command line.

    FIELD=VALUE,FIELD=VALUE     commas inside brackets, braces and quotes don't separate
    lora=NAME:STRENGTH/ALPHA    as `--lora`, may come again
    loras, attention_plan       JSON, as in a request
    embedded=bf16               the embedded model in this format, instead of paths

A side has what changes how a clip is made; what is made (prompt, canvas, length, seed, inputs) is both sides'.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from h3runtime.api.request import GenerateBody
from h3runtime.cli.generation.flags import lora_of
from h3runtime.errors import (
    BackendUnavailable,
    CheckpointError,
    InvalidRequest,
    JobError,
    Offence,
    SettingsError,
    invalid,
)
from h3runtime.settings import PREFIX, SERVICE_ONLY, Settings

SideName = Literal["a", "b"]
OF_BOTH: Final = frozenset(
    {
        "prompt",
        "task",
        "width",
        "height",
        "aspect_ratio",
        "short_edge",
        "frames",
        "seconds",
        "seed",
        "first_frame",
        "last_frame",
        "continue_from",
        "keyframes",
        "references",
        "source",
        "masks",
        "refine",
        "n",
        "priority",
        "callback_url",
        "output",
        "overwrite",
        "format",
        "save_latents",
        "diagnostics",
    }
)
"""Fields of a request that say what is made, and where it goes."""
SETTINGS_OF_BOTH: Final = SERVICE_ONLY | {
    "max_area",
    "max_frames",
    "verify",
    "timeout_mux",
    "lora_cache_bytes",
    "prompt_cache_bytes",
    "mlp_chunks",
    "residency",
}
"""Settings that judge requests or bound memory, and change no clip."""
LORA: Final = "lora"
EMBEDDED: Final = "embedded"
"""The embedded model in one of its formats, as a checkpoint without files of one's own."""
OPENING, CLOSING = "[{", "]}"


@dataclass(frozen=True, slots=True)
class Side:
    """request: fields of `POST /generate` as raw JSON. settings: by field, as text. words: as it was written."""

    name: SideName
    request: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    words: str = ""

    @property
    def label(self) -> str:
        return self.words or "the request as it is"

    def field_of(self, told: str) -> str:
        """A field as an error tells it -> `a.steps` if the side gave it, else as it is, the request's own."""
        own = told.removeprefix(PREFIX).lower() if told.startswith(PREFIX) else told
        root = own.split(".")[0].split("[")[0]
        return f"{self.name}.{own}" if root in self.request or root in self.settings else told


def request_fields() -> tuple[str, ...]:
    """Fields of a request that a side may have, in the request's order."""
    return tuple(name for name in GenerateBody.model_fields if name not in OF_BOTH)


def setting_fields() -> tuple[str, ...]:
    taken = {*request_fields(), *SETTINGS_OF_BOTH}
    return (EMBEDDED, *(name for name in Settings.model_fields if name not in taken))


def read_side(name: SideName, texts: Sequence[str]) -> Side:
    """InvalidRequest listing everything that is no field, comes twice, or has no value. texts: of each `--a`."""
    request: dict[str, Any] = {}
    settings: dict[str, str] = {}
    offences: list[Offence] = []
    for item in (item for text in texts for item in split(text)):
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if fault := _fault(name, key, equals, value, {*request, *settings}):
            offences.append(fault)
        elif key == LORA:
            request.setdefault("loras", []).append(lora_of(value.strip()))
        elif key in request_fields():
            request[key] = _value(value.strip())
        else:
            settings[key] = value.strip()
    if offences:
        raise invalid(offences)
    return Side(name, request, settings, ", ".join(item.strip() for text in texts for item in split(text)))


def split(text: str) -> list[str]:
    """At commas outside brackets and quotes; empty pieces are none."""
    pieces, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += 0 if quoted else (character in OPENING) - (character in CLOSING)
        if character == "," and not quoted and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece for piece in pieces if piece.strip()]


@contextmanager
def told_by(side: Side) -> Iterator[None]:
    """What is wrong inside is told as this side's: its message begins with `a:`, its own fields with `a.`."""
    try:
        yield
    except (InvalidRequest, BackendUnavailable, SettingsError, CheckpointError) as error:
        offences = [Offence(side.field_of(o.field), o.message, o.legal) for o in error.offences]
        raise type(error)(f"side {side.name}: {error.message}", offences) from error
    except JobError as error:
        error.message = f"side {side.name}: {error.message}"
        raise


def _fault(side: SideName, key: str, equals: str, value: str, given: set[str]) -> Offence | None:
    known = (LORA, *request_fields(), *setting_fields())
    where = f"{side}.{key}"
    if key in OF_BOTH or key in SETTINGS_OF_BOTH:
        return Offence(where, "is of both sides: give it as a flag", ", ".join(known))
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        return Offence(
            where, "there is no such field" + (f"; did you mean {near[0]}?" if near else ""), ", ".join(known)
        )
    if not equals or not value.strip():
        return Offence(where, "has no value", f"{key}=VALUE")
    if key in given:
        return Offence(where, "is given twice", "once")
    return None


def _value(text: str) -> Any:
    """JSON where it is, else the text: names need no quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text

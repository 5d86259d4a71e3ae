"""The strict base of every body on the wire, the bodies within a field, and how a validator refuses in our own words.

`request` and `prompt` build their bodies on it; `request.words` turns refusals into offences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


class Strict(BaseModel):
    """No unknown fields, no conversions (`1` is no boolean), no NaN or infinity; frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def bodies_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Bodies that a field's type mentions: in an option, in a list, beside words."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from bodies_in(argument)


def refusal(message: str, legal: str) -> PydanticCustomError:
    # Braces would be read as a template.
    return PydanticCustomError("refused", "{text}", {"text": message, "legal": legal})


def refusal_of(field: str, message: str, legal: str) -> ValidationError:
    """A refusal of one field by a validator that judges the whole body."""
    wrong = InitErrorDetails(type=refusal(message, legal), loc=(field,), input=None)
    return ValidationError.from_exception_data("body", [wrong])


def shown(value: Any) -> str:
    """A value as an error names it: short, plain ASCII whatever it holds, and but for texts as JSON has it."""
    text = ascii(value) if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."

"""Raw JSON -> the body of its task, or everything that is wrong with its fields at once.

Fed by `body` and the command line; `admission` and the rules read the result. The contract is service-contract "POST
/generate" with its small print: unknown fields, a null outside `NULLABLE`, a boolean that isn't one and a non-finite
number are errors, under the client's own names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from h3runtime.api.request.tasks import GenerateBody, TaskBody
from h3runtime.api.request.words import Location, null_offence, offence_of
from h3runtime.errors import Offence

NULLABLE = frozenset({"first_frame", "last_frame", "source", "masks", "continue_from", "format", "refine"})
"""Where an explicit null means "not given" (service-contract, small print)."""
TASK_BODY: TypeAdapter[GenerateBody] = TypeAdapter(TaskBody)


@dataclass(frozen=True, slots=True)
class ReadBody:
    """What could be read: `body` holds every field that is right by itself, `broken` names the others."""

    body: GenerateBody
    broken: frozenset[str]
    offences: tuple[Offence, ...]


def read_body(raw: Mapping[str, Any]) -> ReadBody:
    """Judge every field by itself. Broken ones are left out of `body`, so that the rules can judge the rest.

    `body` is its task's own where it fits that: where the inputs contradict the task, and the rules name both.
    """
    found = {place: null_offence(place) for place in _misplaced_nulls(raw)}
    body: GenerateBody | None = None
    try:
        body = TASK_BODY.validate_python(raw)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            # The first part of a place is the task; nothing else is left of one that is about the whole body.
            place = item["loc"][1:]
            if place and (place not in found or item["type"] == "extra_forbidden"):
                found[place] = offence_of(place, item)
    broken = frozenset(str(place[0]) for place in found)
    if body is None or broken:
        # A stand-in: a request with a broken prompt is refused, but its other fields are still to be judged.
        right = {name: value for name, value in raw.items() if name not in broken}
        body = GenerateBody.model_validate({"prompt": "-"} | right)
    return ReadBody(body, broken, tuple(_in_order(found, raw)))


def _in_order(found: Mapping[Location, Offence], raw: Mapping[str, Any]) -> list[Offence]:
    """In the order of the request; what is missing from it comes last."""
    order = {name: index for index, name in enumerate(raw)}
    return [found[place] for place in sorted(found, key=lambda place: order.get(str(place[0]), len(order)))]


def _misplaced_nulls(raw: Mapping[str, Any]) -> Iterator[Location]:
    for name in raw.keys() & GenerateBody.model_fields.keys():
        yield from (place for place in _nulls(raw[name], (name,)) if len(place) > 1 or name not in NULLABLE)


def _nulls(value: Any, place: Location) -> Iterator[Location]:
    """Where all nulls are: `("format", "crf")`."""
    if value is None:
        yield place
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _nulls(item, (*place, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nulls(item, (*place, index))

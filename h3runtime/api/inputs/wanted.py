"""Which fields of a request hold a medium, and of what kind: a list, in the order of the packed sequence.

Fed by `opening` with a readable body. Looks at no medium.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from h3runtime.api.request import GenerateBody, MediaBody

Kind = Literal["picture", "clip", "sound"]
REFERENCE_KINDS: Mapping[str, Kind] = {"image": "picture", "video": "clip", "audio": "sound"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field that holds a medium, or the id of a job. kind: None for a mask, which may be a picture or a clip."""

    field: str
    kind: Kind | None
    medium: MediaBody | None
    job: str | None = None


def wanted_of(body: GenerateBody) -> list[Wanted]:
    """In the order of the packed sequence."""
    return [*_wanted_guides(body), *_wanted_references(body), *_wanted_edit(body)]


def _wanted_guides(body: GenerateBody) -> Iterator[Wanted]:
    for name, picture in (("first_frame", body.first_frame), ("last_frame", body.last_frame)):
        if picture is not None:
            yield Wanted(name, "picture", picture)
    if (continued := body.continue_from) is not None:
        yield Wanted("continue_from", "clip", continued.medium, continued.job)
    for index, guide in enumerate(body.keyframes):
        at = f"keyframes[{index}]"
        if guide.image is not None:
            yield Wanted(f"{at}.image", "picture", guide.image)
        if guide.video is not None:
            yield Wanted(f"{at}.video", "clip", guide.video)
        if isinstance(guide.audio, MediaBody):
            yield Wanted(f"{at}.audio", "sound", guide.audio)


def _wanted_references(body: GenerateBody) -> Iterator[Wanted]:
    for index, reference in enumerate(body.references):
        at = f"references[{index}]"
        yield Wanted(f"{at}.source", REFERENCE_KINDS[reference.type], reference.source)
        if isinstance(reference.audio, MediaBody) and reference.type == "video":
            yield Wanted(f"{at}.audio", "sound", reference.audio)


def _wanted_edit(body: GenerateBody) -> Iterator[Wanted]:
    if body.source is not None:
        yield Wanted("source", "clip", body.source.medium, body.source.job)
    if body.masks is not None and body.masks.video is not None:
        yield Wanted("masks.video", None, body.masks.video)

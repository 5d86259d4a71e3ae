"""The guides of a request: what it anchors at which frame of the target, in the order of the packed sequence.

First and last frame are guides like any other (dit-contract §8); what sets them apart is the fit, and that the text
encoder is shown them. Fed by `admission` and the command line with judged media.
"""

from __future__ import annotations

from collections.abc import Mapping

from h3runtime.core import GuideInput, MediaFile


def guides_of(pictures: Mapping[str, MediaFile], frames: int) -> tuple[GuideInput, ...]:
    """pictures: by field, `first_frame` and `last_frame`. frames: F of the target."""
    guides = []
    if (first := pictures.get("first_frame")) is not None:
        guides.append(GuideInput("first_frame", 0, picture=first, fit="stretch", shown=True))
    if (last := pictures.get("last_frame")) is not None:
        guides.append(GuideInput("last_frame", frames - 1, picture=last, fit="cover", shown=True))
    return tuple(guides)

"""The canvas: as given, or derived from the aspect ratio, else from the first input that has a shape, else 16:9."""

from __future__ import annotations

from collections.abc import Mapping

from h3runtime.api.request import SHORT_EDGES, GenerateBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import AREA_CAP, MIN_SIDE, SIDE_MULTIPLE
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size

DEFAULT_ASPECT = (16.0, 9.0)
STRETCH_WARNING = 1.1
"""A picture is put on a canvas of another aspect without cropping; from 10 % on, people see it."""
STRETCHED = ("first_frame", "source")
"""Inputs that are stretched to the canvas; all others are cropped (conditioning contract §3.2)."""


def judge_canvas(body: GenerateBody, anchors: Mapping[str, Size], max_area: int, verdict: Verdict) -> Size:
    """Pixels of the target. anchors: field -> upright size of what can give the canvas its aspect, in the order of
    their right to do so. max_area: in pixels."""
    aspect = _aspect_of(body)
    short_edge = _judge_short_edge(body.short_edge, verdict)
    size = _judge_sides(body, max_area, verdict)
    anchor = next(iter(anchors), None)
    if size is not None:
        _judge_agreement(size, aspect, body.short_edge, max_area, verdict)
    elif aspect is not None:
        if not geometry.is_legal_aspect(*aspect):
            verdict.refuse("aspect_ratio", f"{body.aspect_ratio} is too narrow", "from 1:4 to 4:1")
        size = geometry.derived_canvas(*aspect, short_edge, max_area)
    elif anchor is not None:
        size = _anchored(body, anchor, anchors[anchor], short_edge, max_area, verdict)
    else:
        size = geometry.derived_canvas(*DEFAULT_ASPECT, short_edge, max_area)
    _warn_of_stretch(size, anchors, verdict)
    return size


def _anchored(body: GenerateBody, anchor: str, shape: Size, short_edge: int, max_area: int, verdict: Verdict) -> Size:
    """The canvas that an input asks for: the aspect of a picture or clip, the very canvas of a job that goes on."""
    is_job = anchor == "continue_from" and body.continue_from is not None and body.continue_from.job is not None
    if is_job and body.short_edge is None and shape.area <= max_area:
        return shape
    if not geometry.is_legal_aspect(*shape):
        told = f"{shape.width}x{shape.height} is too narrow to choose a canvas by"
        verdict.refuse(anchor, told, "1:4..4:1, or width and height")
    return geometry.derived_canvas(*shape, short_edge, max_area)


def _aspect_of(body: GenerateBody) -> tuple[float, float] | None:
    if body.aspect_ratio is None:
        return None
    width, height = body.aspect_ratio.split(":")
    return float(width), float(height)


def _judge_short_edge(short_edge: int | None, verdict: Verdict) -> int:
    if short_edge is None:
        return geometry.SHORT_EDGE
    if short_edge in SHORT_EDGES:
        return short_edge
    legal = f"a multiple of {SIDE_MULTIPLE} from {SHORT_EDGES[0]} to {SHORT_EDGES[-1]}"
    verdict.refuse("short_edge", f"{short_edge} is not legal", legal)
    return geometry.SHORT_EDGE


def _judge_sides(body: GenerateBody, max_area: int, verdict: Verdict) -> Size | None:
    """The canvas as given, if it is whole and legal."""
    sides = {"width": body.width, "height": body.height}
    given = {name: side for name, side in sides.items() if side is not None}
    right = [_judge_side(name, side, verdict) for name, side in given.items()]
    if len(given) == 1 and not verdict.broken & sides.keys():
        (there,) = given
        (missing,) = sides.keys() - given.keys()
        verdict.refuse(missing, f"is missing beside {there}", "both width and height, or neither")
    if len(given) < 2 or not all(right):
        return None
    size = Size(given["width"], given["height"])
    if size.area > max_area:
        legal = _within(size, max_area)
        longer = "width" if size.width >= size.height else "height"
        told = f"{size.width}x{size.height} has {size.area} pixels, more than {max_area}"
        verdict.refuse(longer, f"{told}; try {legal.width}x{legal.height}", f"{legal.width}x{legal.height}")
        return None
    _warn_of_untrained(size, verdict)
    return size


def _judge_side(name: str, side: int, verdict: Verdict) -> bool:
    if side >= MIN_SIDE and side % SIDE_MULTIPLE == 0:
        return True
    below = max(MIN_SIDE, side // SIDE_MULTIPLE * SIDE_MULTIPLE)
    near = " or ".join(
        str(legal) for legal in sorted({below, max(MIN_SIDE, below + SIDE_MULTIPLE * (side > MIN_SIDE))})
    )
    verdict.refuse(
        name, f"{side} is not a multiple of {SIDE_MULTIPLE} from {MIN_SIDE}", f"multiples of {SIDE_MULTIPLE}: {near}"
    )
    return False


def _within(size: Size, max_area: int) -> Size:
    """`size` with 32 taken off its longer side until it is legal: what `derived_canvas` does to its own results."""
    if size.area > 16 * max_area:
        return geometry.derived_canvas(*_clamped(size), max_area=max_area)
    while size.area > max_area and max(size) > MIN_SIDE:
        wide = size.width >= size.height
        size = Size(size.width - SIDE_MULTIPLE * wide, size.height - SIDE_MULTIPLE * (not wide))
    return size


def _clamped(size: Size) -> tuple[float, float]:
    """The aspect as width and height, brought within what the model takes."""
    aspect = min(geometry.MAX_ASPECT, max(1 / geometry.MAX_ASPECT, size.width / size.height))
    return aspect, 1.0


def _judge_agreement(
    size: Size, aspect: tuple[float, float] | None, short_edge: int | None, max_area: int, verdict: Verdict
) -> None:
    """A canvas beside the aspect or the short edge it should have. What the server derives from them always agrees."""
    ratio = aspect or (float(size.width), float(size.height))
    if not geometry.is_legal_aspect(*ratio):
        ratio = _clamped(Size(int(ratio[0]), int(ratio[1])))
    if size == geometry.derived_canvas(*ratio, short_edge or geometry.SHORT_EDGE, max_area):
        return
    told = f"contradicts width {size.width} and height {size.height}"
    if aspect is not None and not _has_aspect(size, aspect):
        verdict.refuse("aspect_ratio", f"{aspect[0]:g}:{aspect[1]:g} {told}", "the ratio of width and height, or none")
    if short_edge is not None and min(size) != short_edge:
        verdict.refuse("short_edge", f"{short_edge} {told}", f"{min(size)}, or leave it out")


def _has_aspect(size: Size, aspect: tuple[float, float]) -> bool:
    """Whether both sides are within one step of 32 of some rectangle of that aspect: each may have been rounded."""
    low = max((side - SIDE_MULTIPLE / 2) / part for side, part in zip(size, aspect, strict=True))
    high = min((side + SIDE_MULTIPLE / 2) / part for side, part in zip(size, aspect, strict=True))
    return low <= high


def _warn_of_untrained(size: Size, verdict: Verdict) -> None:
    if size.area > AREA_CAP:
        verdict.warnings.append(f"{size.area} pixels are more than {AREA_CAP}, the largest trained canvas")
    if not geometry.is_legal_aspect(*size):
        verdict.warnings.append(f"{size.width}x{size.height} is narrower than 1:4, the narrowest trained canvas")


def _warn_of_stretch(size: Size, anchors: Mapping[str, Size], verdict: Verdict) -> None:
    for name in (name for name in STRETCHED if name in anchors):
        width, height = anchors[name]
        stretch = size.width / size.height * height / width
        if not 1 / STRETCH_WARNING <= stretch <= STRETCH_WARNING:
            verdict.warnings.append(f"{name} is {width}x{height} and is stretched to {size.width}x{size.height}")

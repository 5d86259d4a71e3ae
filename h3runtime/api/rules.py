"""Rules between the fields of a request: task and inputs, canvas, length, backends, output name.

Each rule takes the readable part of the body and says what is wrong, under the names the client used; none of them
stops at the first fault, and none judges a field that is broken already. `admission` feeds the body, the sizes of the
pictures that could be opened, and the server's limits; what comes out is resolved: nothing in it needs judging again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from h3runtime.api.request import SHORT_EDGES, GenerateBody, ReadBody
from h3runtime.core import AREA_CAP, FPS, MIN_FRAMES, MIN_SIDE, SIDE_MULTIPLE, TRAINED_FRAMES, BackendChoice, Task
from h3runtime.errors import Offence
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size

DEFAULT_FRAMES = 124
DEFAULT_ASPECT = (16.0, 9.0)
SUFFIX = ".mp4"
MAX_NAME_BYTES = 200
"""Of 255 that file systems take: the rest is for the suffixes of what lies beside a clip."""
STRETCH_WARNING = 1.1
"""A picture is put on a canvas of another aspect without cropping; from 10 % on, people see it."""
INPUTS: Mapping[Task, frozenset[str]] = {
    Task.T2VA: frozenset(),
    Task.I2VA: frozenset({"first_frame"}),
    Task.L2VA: frozenset({"last_frame"}),
    Task.FL2VA: frozenset({"first_frame", "last_frame"}),
}
FRAMES = ("first_frame", "last_frame")


class Verdict:
    """Collects offences and warnings while the rules run. `broken` names the fields that can't be judged any more."""

    def __init__(self, read: ReadBody) -> None:
        self.broken = read.broken
        self.offences: list[Offence] = []
        self.warnings: list[str] = []

    def refuse(self, field: str, message: str, legal: str = "") -> None:
        self.offences.append(Offence(field, message, legal))


def judge_task(body: GenerateBody, verdict: Verdict) -> Task:
    """The task that the inputs mean. A stated one that means other inputs is a contradiction, told for each field."""
    inputs = frozenset(name for name in FRAMES if getattr(body, name) is not None)
    inferred = next(task for task, needs in INPUTS.items() if needs == inputs)
    # Where an input is broken, what was meant to be there can't be known.
    if body.task is None or body.task == inferred or verdict.broken & {"task", *FRAMES}:
        return inferred
    wanted = INPUTS[Task(body.task)]
    verdict.refuse("task", f"{body.task!r} contradicts the inputs given", f"{inferred.value!r}, or leave it out")
    for name in sorted(wanted - inputs):
        verdict.refuse(name, f"is needed by task {body.task!r}", "a picture")
    for name in sorted(inputs - wanted):
        verdict.refuse(name, f"is no input of task {body.task!r}", f"none, or task {inferred.value!r}")
    return inferred


def judge_length(body: GenerateBody, max_frames: int, verdict: Verdict) -> int:
    """Frames of the clip, from `frames`, `seconds` or the default."""
    frames = _judge_frames(body.frames, max_frames, verdict)
    from_seconds = _judge_seconds(body.seconds, max_frames, verdict)
    if frames is not None and from_seconds is not None and frames != from_seconds:
        message = f"{body.seconds:g} s mean {from_seconds} frames, which contradicts frames {frames}"
        verdict.refuse("seconds", message, f"{frames / FPS:.3f}, or leave one of the two out")
    default = geometry.frames_at_most(min(DEFAULT_FRAMES, max_frames)) or MIN_FRAMES
    length = frames or from_seconds or default
    low, high = TRAINED_FRAMES
    if not low <= length <= high:
        verdict.warnings.append(f"{length} frames are outside {low}..{high}, the lengths that the model was trained on")
    return length


def _judge_frames(frames: int | None, max_frames: int, verdict: Verdict) -> int | None:
    if frames is None:
        return None
    if geometry.is_legal_frames(frames) and frames <= max_frames:
        return frames
    near = " or ".join(str(legal) for legal in geometry.legal_neighbours(frames, max_frames))
    verdict.refuse("frames", f"{frames} is not a legal length; try {near}", f"17n+5 from 5 to {max_frames}: {near}")
    return None


def _judge_seconds(seconds: float | None, max_frames: int, verdict: Verdict) -> int | None:
    if seconds is None:
        return None
    longest = geometry.frames_at_most(max_frames) or MIN_FRAMES
    frames = geometry.frames_for_seconds(seconds) if seconds <= longest / FPS + 1 else longest + 1
    if frames <= longest:
        return frames
    verdict.refuse("seconds", f"{seconds:g} is longer than this server makes", f"above 0, at most {longest / FPS:.3f}")
    return None


def judge_canvas(body: GenerateBody, pictures: Mapping[str, Size], max_area: int, verdict: Verdict) -> Size:
    """The canvas: as given, or derived from the aspect ratio, else from the first picture, else 16:9."""
    aspect = _aspect_of(body)
    short_edge = _judge_short_edge(body.short_edge, verdict)
    given = _judge_sides(body, max_area, verdict)
    anchor = next((name for name in FRAMES if name in pictures), None)
    if given is not None:
        _judge_agreement(given, aspect, body.short_edge, max_area, verdict)
        _warn_of_stretch(given, anchor, pictures, verdict)
        return given
    if aspect is not None and not geometry.is_legal_aspect(*aspect):
        verdict.refuse("aspect_ratio", f"{body.aspect_ratio} is too narrow", "from 1:4 to 4:1")
    elif aspect is None and anchor is not None and not geometry.is_legal_aspect(*pictures[anchor]):
        width, height = pictures[anchor]
        verdict.refuse(anchor, f"{width}x{height} is too narrow to choose a canvas by", "1:4..4:1, or width and height")
    wide, high = aspect or (pictures[anchor] if anchor else DEFAULT_ASPECT)
    size = geometry.derived_canvas(wide, high, short_edge, max_area)
    _warn_of_stretch(size, anchor, pictures, verdict)
    return size


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


def _warn_of_stretch(size: Size, anchor: str | None, pictures: Mapping[str, Size], verdict: Verdict) -> None:
    """Only the first picture is stretched; the second is cropped (conditioning contract §3.2)."""
    if anchor != "first_frame":
        return
    width, height = pictures[anchor]
    stretch = size.width / size.height * height / width
    if not 1 / STRETCH_WARNING <= stretch <= STRETCH_WARNING:
        verdict.warnings.append(f"{anchor} is {width}x{height} and is stretched to {size.width}x{size.height}")


def judge_backend(field: str, name: str | None, choice: BackendChoice, verdict: Verdict) -> None:
    if name is None or name in choice.available:
        return
    why = choice.unavailable.get(name, "is not known")
    verdict.refuse(field, f"{ascii(name)[:60]}: {why}", ", ".join(choice.available))


def judge_output(name: str | None, outputs: Path, verdict: Verdict) -> None:
    """A bare name below the output root, that can't lead anywhere else."""
    if name is None:
        return
    legal = f"a bare file name ending in {SUFFIX}, at most {MAX_NAME_BYTES} bytes"
    if (why := _why_no_name(name)) is not None:
        verdict.refuse("output", f"{ascii(name)[:60]} {why}", legal)
    elif (outputs / name).is_symlink():
        verdict.refuse("output", f"{ascii(name)[:60]} is a symbolic link", legal)
    elif (outputs / name).exists() and not (outputs / name).is_file():
        verdict.refuse("output", f"{ascii(name)[:60]} is not a file", legal)


def _why_no_name(name: str) -> str | None:
    if any(character in name for character in "/\\") or name in ("", ".", ".."):
        return "is a path, not a bare name"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "holds a control character"
    if name.startswith("."):
        return "begins with a dot"
    if not name.endswith(SUFFIX):
        return f"does not end in {SUFFIX}"
    if len(name.encode()) > MAX_NAME_BYTES:
        return "is too long"
    return None

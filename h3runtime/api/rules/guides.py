"""Where on the target's clock its guides lie: frames counted from either end, one guide a frame, and how much of a clip
may be continued. What of a clip fits behind its frame is judged at admission, which measures it."""

from __future__ import annotations

from collections.abc import Mapping

from h3runtime.api.request import GenerateBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import CHUNK_FRAMES, MIN_FRAMES
from h3runtime.packing import geometry


def guide_places(body: GenerateBody, frames: int) -> dict[str, int]:
    """Field (`first_frame`, `keyframes[1]`) -> frame of a target of F `frames`, in the order of the packed sequence.

    A keyframe outside the target is left out.
    """
    ends = {"first_frame": 0, "last_frame": frames - 1, "continue_from": 0}
    found = {name: frame for name, frame in ends.items() if getattr(body, name) is not None}
    for index, keyframe in enumerate(body.keyframes):
        if -frames <= keyframe.frame < frames:
            found[f"keyframes[{index}]"] = keyframe.frame % frames
    return found


def judge_guides(body: GenerateBody, frames: int, verdict: Verdict) -> dict[str, int]:
    """`guide_places`, with whatever is wrong about them told."""
    if "frames" not in verdict.broken:
        _judge_range(body, frames, verdict)
        _judge_continuation(body, frames, verdict)
    found = guide_places(body, frames)
    _judge_clashes(body, found, verdict)
    return found


def _judge_range(body: GenerateBody, frames: int, verdict: Verdict) -> None:
    for index, keyframe in enumerate(body.keyframes):
        if not -frames <= keyframe.frame < frames:
            told = f"{keyframe.frame} is outside the {frames} frames of the clip"
            verdict.refuse(f"keyframes[{index}].frame", told, f"{-frames}..{frames - 1}")


def _judge_clashes(body: GenerateBody, found: Mapping[str, int], verdict: Verdict) -> None:
    """Two guides on one frame, told for both. Of an unknown length only equal words are one frame."""
    places = dict(found)
    if "frames" in verdict.broken:
        places |= {"last_frame": -1} if body.last_frame is not None else {}
        places |= {f"keyframes[{index}]": keyframe.frame for index, keyframe in enumerate(body.keyframes)}
    for name, frame in places.items():
        others = [other for other, there in places.items() if there == frame and other != name]
        if others:
            field = f"{name}.frame" if name.startswith("keyframes") else name
            verdict.refuse(field, f"is at frame {frame}, where {' and '.join(others)} is too", "one guide a frame")


def _judge_continuation(body: GenerateBody, frames: int, verdict: Verdict) -> None:
    """Frames that are continued: on the grid, and fewer than the clip's, which would hold nothing new else."""
    if body.continue_from is None:
        return
    count = body.continue_from.frames
    is_legal = geometry.is_legal_frames(count)
    if is_legal and count < frames:
        return
    near = " or ".join(str(legal) for legal in geometry.legal_neighbours(count, frames - CHUNK_FRAMES))
    if not near:
        told = f"{count} frames can't be continued in a clip of {frames}"
        verdict.refuse("continue_from.frames", told, f"a clip of more than {MIN_FRAMES} frames")
        return
    legal = f"17n+5 from {MIN_FRAMES}, fewer than the clip's {frames}: {near}"
    told = f"{count} frames would fill the clip" if is_legal else f"{count} is not a legal length"
    verdict.refuse("continue_from.frames", f"{told}; try {near}", legal)

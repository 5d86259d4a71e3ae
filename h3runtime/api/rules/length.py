"""How many frames the clip has: as given, as many as its source, or the default; and what the model makes of that."""

from __future__ import annotations

from h3runtime.api.request import GenerateBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import FPS, MIN_FRAMES, EngineFacts
from h3runtime.packing import geometry

DEFAULT_FRAMES = 124


def judge_length(body: GenerateBody, max_frames: int, verdict: Verdict, source_frames: int | None = None) -> int:
    """Frames of the clip, from `frames`, `seconds`, the source or the default.

    source_frames: of `source` on the 24 fps clock; None if there is none, or it couldn't be opened. Where the length
    can't be known, the verdict gives up on `frames`.
    """
    frames = _judge_frames(body.frames, max_frames, verdict)
    from_seconds = _judge_seconds(body.seconds, max_frames, verdict)
    if frames is not None and from_seconds is not None and frames != from_seconds:
        message = f"{body.seconds:g} s mean {from_seconds} frames, which contradicts frames {frames}"
        verdict.refuse("seconds", message, f"{frames / FPS:.3f}, or leave one of the two out")
    length = frames or from_seconds or _default(body, max_frames, verdict, source_frames)
    if source_frames is not None and "frames" not in verdict.broken:
        _judge_source(length, source_frames, verdict)
    return length


def judge_training(frames: int, facts: EngineFacts, verdict: Verdict) -> None:
    """Warn of a length that the loaded model wasn't trained on."""
    low, high = facts.trained_frames
    if not low <= frames <= high:
        verdict.warnings.append(f"{frames} frames are outside {low}..{high}, the lengths that the model was trained on")


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


def _default(body: GenerateBody, max_frames: int, verdict: Verdict, source_frames: int | None) -> int:
    """The length where none is given, or none that is legal."""
    was_asked = body.frames is not None or body.seconds is not None or bool(verdict.broken & {"frames", "seconds"})
    has_source = body.source is not None or "source" in verdict.broken
    if was_asked or (has_source and source_frames is None):
        verdict.give_up("frames")
    wanted = DEFAULT_FRAMES if source_frames is None or was_asked else source_frames
    return geometry.frames_at_most(min(wanted, max_frames)) or MIN_FRAMES


def _judge_source(length: int, source_frames: int, verdict: Verdict) -> None:
    if source_frames < length:
        legal = f"at least {length} frames"
        if (longest := geometry.frames_at_most(source_frames)) is not None:
            legal += f", or frames {longest} or fewer"
        verdict.refuse("source", f"has {source_frames} frames, and the clip has {length}", legal)

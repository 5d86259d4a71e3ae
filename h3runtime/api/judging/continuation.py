"""`continue_from`: the last frames of a clip, and their sound, as a guide at frame 0 of the next one.

From a job it is the job's tail, kept without loss; from a medium it is that clip's end. Nothing of it is shown to the
text encoder. Fed by `guides` with measured media; that the frames asked for are a legal number is `rules`' part.
"""

from __future__ import annotations

from h3runtime.api.inputs.opened import Inputs
from h3runtime.api.judging.sounds import own_sound
from h3runtime.api.request import ContinueBody
from h3runtime.api.rules import Verdict
from h3runtime.core import FPS, ClipInput, GuideInput
from h3runtime.packing import geometry

FIELD = "continue_from"


def continuation_of(asked: ContinueBody, inputs: Inputs, verdict: Verdict) -> GuideInput | None:
    """The guide, if its clip could be opened and has the frames."""
    opened = inputs.clips.get(FIELD)
    if opened is None:
        return None
    first = opened.frames - asked.frames
    if first < 0:
        _refuse_short(asked.frames, opened.frames, verdict)
        return None
    sound = own_sound(opened.file, opened.measured, first / FPS, asked.frames / FPS) if asked.audio else None
    if asked.audio and sound is None:
        verdict.warnings.append(f"{FIELD} has no sound there, so only its pictures are continued")
    return GuideInput(FIELD, 0, clip=ClipInput(opened.file, first, asked.frames), sound=sound)


def _refuse_short(asked: int, there: int, verdict: Verdict) -> None:
    most = geometry.frames_at_most(there)
    legal = f"17n+5, at most {most}" if most else "a clip of at least 5 frames"
    verdict.refuse(f"{FIELD}.frames", f"{asked} frames were asked for, but only {there} are there", legal)

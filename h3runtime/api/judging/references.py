"""The references of Ref2VA: how long their clips and sounds may be, and what of each is used.

Every clip and sound 2 to 15 s of what is used from `start` on, 15 s of each kind in all; a clip's own soundtrack is not
counted (conditioning contract §3.3; how many there may be is `rules`' part). `judge_lengths` asks measures alone, so
that what is too long is never decoded. What is used:

    picture   stretched to a size that `size` chooses
    clip      frames from round(24 start) on, at most F, cut down to 17n+5; on a canvas of its own aspect
    sound     from `start` to its end. A soundtrack, the clip's own or another file, lies on the clip's own time, so it
              is used from the very moment that the clip is used from
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from h3runtime.api.inputs.opened import Inputs, OpenedClip
from h3runtime.api.judging.sounds import own_sound, seconds_left
from h3runtime.api.request import GenerateBody, ReferenceBody
from h3runtime.api.rules import Verdict
from h3runtime.core import FPS, ClipInput, ReferenceInput, SoundInput
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size

PLURAL: Mapping[str, str] = {"video": "videos", "audio": "sounds"}
SHORTEST, LONGEST = 2.0, 15.0
"""Seconds of a clip or sound; the longest also of all of a kind."""
SLACK = 0.05
"""Seconds by which a length may miss a limit: encoders pad sounds, and pictures end on whole frames."""


def judge_lengths(body: GenerateBody, inputs: Inputs, verdict: Verdict) -> None:
    """Of what could be opened, by what has been measured."""
    totals = {"video": 0.0, "audio": 0.0}
    for index, reference in enumerate(body.references):
        for kind, seconds in _lengths(f"references[{index}]", reference, inputs, verdict):
            # One that is too long by itself is told by itself.
            totals[kind] += min(seconds, LONGEST)
    for kind, seconds in totals.items():
        if seconds > LONGEST + SLACK:
            told = f"{seconds:.2f} s of {PLURAL[kind]} would be used in all"
            verdict.refuse("references", told, f"at most {LONGEST:g} s of {PLURAL[kind]} in all")


def references_of(
    body: GenerateBody, inputs: Inputs, size: Size, frames: int, verdict: Verdict
) -> tuple[ReferenceInput, ...]:
    """In the caller's order. size, frames: the target's canvas and F. References whose media couldn't be opened, or are
    too short, are left out."""
    found = [
        _reference(f"references[{index}]", reference, inputs, size, frames, verdict)
        for index, reference in enumerate(body.references)
    ]
    return tuple(reference for reference in found if reference is not None)


def _lengths(at: str, reference: ReferenceBody, inputs: Inputs, verdict: Verdict) -> Iterator[tuple[str, float]]:
    """Kind and seconds of each clip and sound that is used of one reference."""
    clip, sound = inputs.clips.get(f"{at}.source"), inputs.sounds.get(f"{at}.source")
    track = inputs.sounds.get(f"{at}.audio")
    if clip is not None and _begins(at, reference.start, clip.frames / FPS, verdict):
        yield "video", _judged(f"{at}.source", (clip.frames - _first(reference, clip)) / FPS, verdict)
        if track is not None and _begins(at, reference.start, seconds_left(track.measured), verdict):
            left = seconds_left(track.measured, _first(reference, clip) / FPS)
            yield "audio", _judged(f"{at}.audio", left, verdict)
    if sound is not None and _begins(at, reference.start, seconds_left(sound.measured), verdict):
        yield "audio", _judged(f"{at}.source", seconds_left(sound.measured, reference.start), verdict)


def _begins(at: str, start: float, seconds: float, verdict: Verdict) -> bool:
    if start < seconds:
        return True
    verdict.refuse(f"{at}.start", f"{start:g} s is not before its end", f"seconds, 0 or more, below {seconds:.3f}")
    return False


def _judged(field: str, seconds: float, verdict: Verdict) -> float:
    if not SHORTEST - SLACK <= seconds <= LONGEST + SLACK:
        verdict.refuse(field, f"{seconds:.2f} s of it would be used", f"{SHORTEST:g}..{LONGEST:g} s")
    return seconds


def _reference(
    at: str, reference: ReferenceBody, inputs: Inputs, size: Size, frames: int, verdict: Verdict
) -> ReferenceInput | None:
    source = f"{at}.source"
    if (picture := inputs.pictures.get(source)) is not None:
        own = geometry.reference_image_size(*picture.size, size, reference.size)
        return ReferenceInput(at, "image", own.width, own.height, picture=picture.file)
    if (sound := inputs.sounds.get(source)) is not None:
        return ReferenceInput(at, "audio", sound=SoundInput(sound.file, reference.start))
    if (clip := inputs.clips.get(source)) is not None:
        return _video(at, reference, clip, inputs, frames, verdict)
    return None


def _video(
    at: str, reference: ReferenceBody, clip: OpenedClip, inputs: Inputs, frames: int, verdict: Verdict
) -> ReferenceInput | None:
    first = _first(reference, clip)
    used = geometry.reference_frames(clip.frames - first, frames)
    if used is None:
        return None
    own = geometry.reference_video_size(*clip.size)
    track = _soundtrack(at, reference, clip, inputs, first / FPS)
    if reference.audio == "auto" and track is None and clip.measured.sound is not None:
        verdict.warnings.append(f"{at}.source has no sound from {reference.start:g} s on, so none is used")
    return ReferenceInput(at, "video", own.width, own.height, clip=ClipInput(clip.file, first, used), sound=track)


def _soundtrack(at: str, reference: ReferenceBody, clip: OpenedClip, inputs: Inputs, start: float) -> SoundInput | None:
    if reference.audio == "auto":
        return own_sound(clip.file, clip.measured, start)
    track = inputs.sounds.get(f"{at}.audio")
    return None if track is None else SoundInput(track.file, start)


def _first(reference: ReferenceBody, clip: OpenedClip) -> int:
    """The frame at `start`; the clip's end if it has ended by then (of 1e308 s no frame could be computed)."""
    return round(reference.start * FPS) if reference.start < clip.frames / FPS else clip.frames

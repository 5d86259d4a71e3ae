"""The guides of a request: what it anchors at which frame of the target, in the order of the packed sequence.

    first_frame, last_frame, continue_from, keyframes as the caller has them

First and last frame are guides like any other (dit-contract §8). What sets them apart is that the text encoder is shown
them, unless there are references, which it counts instead; and that the first is stretched to the canvas where all
others cover it. Where they lie is `rules`' part; here it is judged what of their clips and sounds fits there.
"""

from __future__ import annotations

from collections.abc import Mapping

from h3runtime.api.inputs.opened import Inputs
from h3runtime.api.judging.continuation import continuation_of
from h3runtime.api.judging.sounds import latents_left, own_sound
from h3runtime.api.request import GenerateBody, KeyframeBody, MediaBody
from h3runtime.api.rules import Verdict
from h3runtime.core import ClipInput, Fit, GuideInput, SoundInput
from h3runtime.packing import geometry


def guides_of(
    body: GenerateBody, inputs: Inputs, places: Mapping[str, int], frames: int, verdict: Verdict
) -> tuple[GuideInput, ...]:
    """places: `Resolved.guide_places`. frames: F of the target. Guides whose media couldn't be opened are left out."""
    found = [
        _continuation_or_end(body, inputs, name, frame, verdict)
        for name, frame in places.items()
        if not name.startswith("keyframes")
    ]
    for index, keyframe in enumerate(body.keyframes):
        at = f"keyframes[{index}]"
        if at in places:
            found.append(_keyframe(at, keyframe, inputs, places[at], frames, verdict))
    return tuple(guide for guide in found if guide is not None)


def _continuation_or_end(
    body: GenerateBody, inputs: Inputs, name: str, frame: int, verdict: Verdict
) -> GuideInput | None:
    if body.continue_from is not None and name == "continue_from":
        return continuation_of(body.continue_from, inputs, verdict)
    picture = inputs.pictures.get(name)
    if picture is None:
        return None
    fit: Fit = "stretch" if name == "first_frame" else "cover"
    return GuideInput(name, frame, picture=picture.file, fit=fit, shown=not body.references)


def _keyframe(
    at: str, asked: KeyframeBody, inputs: Inputs, frame: int, frames: int, verdict: Verdict
) -> GuideInput | None:
    picture, clip = inputs.pictures.get(f"{at}.image"), inputs.clips.get(f"{at}.video")
    used = geometry.guide_frames(clip.frames) if clip is not None else 1
    if frame + used > frames and "frames" not in verdict.broken:
        message = f"the {used} frames of its clip don't fit behind frame {frame} of {frames}"
        verdict.refuse(f"{at}.frame", message, f"0..{frames - used}" if used <= frames else "a shorter clip")
    sound = _sound(at, asked, inputs, frame, frames, verdict)
    if picture is None and clip is None and sound is None:
        return None
    return GuideInput(
        field=at,
        frame=frame,
        picture=picture.file if picture is not None else None,
        clip=ClipInput(clip.file, 0, used) if clip is not None else None,
        sound=sound,
    )


def _sound(
    at: str, asked: KeyframeBody, inputs: Inputs, frame: int, frames: int, verdict: Verdict
) -> SoundInput | None:
    """The guide's sound: all of it, of which the engine takes the latents that fit behind `frame`."""
    clip, sound = inputs.clips.get(f"{at}.video"), inputs.sounds.get(f"{at}.audio")
    if asked.audio == "auto" and clip is not None:
        own = own_sound(clip.file, clip.measured)
        if own is None:
            verdict.warnings.append(f"{at}.video has no sound, so it guides the picture alone")
        return own
    if not isinstance(asked.audio, MediaBody) or sound is None:
        return None
    if geometry.guide_audio_latents(latents_left(sound.measured), geometry.audio_latents(frames), frame) < 1:
        verdict.refuse(f"{at}.audio", "is too short to guide anything", "a sound of at least 0.025 s")
        return None
    return SoundInput(sound.file)

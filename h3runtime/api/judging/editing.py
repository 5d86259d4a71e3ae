"""`source` and `masks`: the clip that is edited, and which part of it is kept (dit-contract §8, masks).

1 or white generates, 0 or black keeps. A source that is longer than the clip is used up to there. Whether it is long
enough, and where the sound's spans lie, is `rules`' part; that there is a sound to mask is judged here.
"""

from __future__ import annotations

from h3runtime.api.inputs.opened import Inputs
from h3runtime.api.judging.sounds import latents_left
from h3runtime.api.request import GenerateBody
from h3runtime.api.rules import Verdict
from h3runtime.core import FPS, ClipInput, MaskSpan, MediaFile, SoundInput, SourceInput

MASK = "masks.video"


def source_of(body: GenerateBody, inputs: Inputs, frames: int, verdict: Verdict) -> SourceInput | None:
    """frames: F of the target. None without a source, or if it couldn't be opened."""
    opened = inputs.clips.get("source")
    if opened is None:
        return None
    spans = _spans(body)
    if spans and not latents_left(opened.measured):
        verdict.refuse("masks.audio", "the source has no sound that it could mask", "none, or a source with sound")
    # Where nothing of it is kept, it need not be read.
    is_kept = any(span.value < 1 for span in spans)
    return SourceInput(
        clip=ClipInput(opened.file, 0, frames),
        sound=SoundInput(opened.file, 0.0, frames / FPS) if is_kept else None,
        video_mask=_video_mask(inputs, frames),
        audio_mask=spans or None,
    )


def _spans(body: GenerateBody) -> tuple[MaskSpan, ...]:
    """In the order of time, which need not be the caller's."""
    given = body.masks.audio or () if body.masks is not None else ()
    return tuple(sorted((MaskSpan(s.start, s.end, s.value) for s in given), key=lambda span: span.start))


def _video_mask(inputs: Inputs, frames: int) -> MediaFile | ClipInput | None:
    if (picture := inputs.pictures.get(MASK)) is not None:
        return picture.file
    clip = inputs.clips.get(MASK)
    return None if clip is None else ClipInput(clip.file, 0, min(clip.frames, frames))

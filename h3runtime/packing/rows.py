"""How many rows each segment of the packed sequence has, by closed formulas: no layout is built and nothing is read.

Fed with a judged request and the few counts that it doesn't hold (tokens of its texts, latents of its sounds); read by
`api` for limits and estimates. `layout` makes the rows that are counted here, `conditioning` the text's.

    text        the prompt's tokens, and for each picture that the text encoder is shown its label and its vision block
                (h/32)(w/32) + 2 of the size it is resized to; a clip shows every 12th frame, two to a block that has a
                timestamp; a sound is a label alone               (conditioning contract §1.3, §1.9, §1.10)
    guide       t (h/2)(w/2) of t latent frames, then 2A of its sound                              (dit-contract §2.2)
    reference   2A of its sound, then t (h/2)(w/2) on its own grid
    audio       2A
    video       T (h/2)(w/2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from h3runtime.core import (
    SAMPLE_RATE,
    SAMPLES_PER_LATENT,
    GenerateSpec,
    GuideInput,
    KeyframeShape,
    ReferenceInput,
    ReferenceShape,
    SegmentKind,
)
from h3runtime.media.vision_size import SAMPLE_EVERY, features_of, patch_grid
from h3runtime.packing import geometry
from h3runtime.packing.layout import PATCH, even

MARKERS = 2
"""Rows around the features of a vision block."""

RowsOfText = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """rows: of all segments of `kind` that come from the guide or reference `source`; -1 for text, audio and video."""

    kind: SegmentKind
    rows: int
    source: int = -1


def segment_rows(
    spec: GenerateSpec, prompt_rows: int, sound_latents: Mapping[str, int], rows_of_label: RowsOfText = len
) -> tuple[SegmentRows, ...]:
    """Every segment with rows, in packed order.

    prompt_rows: tokens of the prompt. sound_latents: whole latents of each guide's and reference's sound, by `field` of
    the input, before any cropping. rows_of_label: tokens of a label; by default one a character, which none exceeds.
    """
    latent_frames, audio = geometry.latent_frames(spec.frames), geometry.audio_latents(spec.frames)
    frame_rows = _frame_rows(geometry.latent_side(spec.height), geometry.latent_side(spec.width))
    found = [
        SegmentRows(
            SegmentKind.TEXT,
            prompt_rows + input_rows(spec.guides, spec.references, spec.width, spec.height, rows_of_label),
        ),
        *_guide_rows(spec, sound_latents, frame_rows),
        *_reference_rows(spec, sound_latents),
        SegmentRows(SegmentKind.AUDIO, 2 * audio),
        SegmentRows(SegmentKind.VIDEO, latent_frames * frame_rows),
    ]
    return tuple(segment for segment in found if segment.rows)


def input_rows(
    guides: Sequence[GuideInput],
    references: Sequence[ReferenceInput],
    width: int,
    height: int,
    rows_of_label: RowsOfText = len,
) -> int:
    """Text rows of what is shown beside the prompt: labels, timestamps and vision blocks. width, height: the canvas."""
    pieces = [*_shown_guides(guides, vision_rows(width, height)), *_shown_references(references)]
    return sum(rows_of_label(piece) if isinstance(piece, str) else piece for piece in pieces)


def keyframe_shape(guide: GuideInput, frames: int, sound_latents: int = 0) -> KeyframeShape:
    """frames: F of the target. sound_latents: whole latents of its sound; what doesn't fit behind it is cropped."""
    latent_frames = 1 if guide.picture is not None else 0
    if guide.clip is not None:
        latent_frames = geometry.guide_latent_frames(guide.clip.frames)
    audio = geometry.guide_audio_latents(sound_latents, geometry.audio_latents(frames), guide.frame)
    return KeyframeShape(guide.frame, latent_frames, audio if guide.sound is not None else 0)


def reference_shape(reference: ReferenceInput, sound_latents: int = 0) -> ReferenceShape:
    """sound_latents: whole latents of its sound or soundtrack."""
    latent_frames = 1 if reference.picture is not None else 0
    if reference.clip is not None:
        latent_frames = geometry.latent_frames(reference.clip.frames)
    return ReferenceShape(
        kind=reference.kind,
        latent_frames=latent_frames,
        height=geometry.latent_side(reference.height),
        width=geometry.latent_side(reference.width),
        audio_latents=sound_latents if reference.sound is not None else 0,
    )


def latents_of_sound(samples: int, rate: int) -> int:
    """Whole latents of `samples` at `rate`, once resampled (conditioning contract §5.1)."""
    return round(samples * SAMPLE_RATE / rate) // SAMPLES_PER_LATENT


def vision_rows(width: int, height: int) -> int:
    """Of one vision block of a picture of `width` x `height` pixels, its two markers included."""
    return features_of(patch_grid(height, width)) + MARKERS


def _guide_rows(spec: GenerateSpec, sound_latents: Mapping[str, int], frame_rows: int) -> Iterator[SegmentRows]:
    for index, guide in enumerate(spec.guides):
        shape = keyframe_shape(guide, spec.frames, sound_latents.get(guide.field, 0))
        yield SegmentRows(SegmentKind.COND, shape.latent_frames * frame_rows, index)
        yield SegmentRows(SegmentKind.COND_AUDIO, 2 * shape.audio_latents, index)


def _reference_rows(spec: GenerateSpec, sound_latents: Mapping[str, int]) -> Iterator[SegmentRows]:
    for index, reference in enumerate(spec.references):
        shape = reference_shape(reference, sound_latents.get(reference.field, 0))
        yield SegmentRows(SegmentKind.REF_AUDIO, 2 * shape.audio_latents, index)
        yield SegmentRows(SegmentKind.REF_IMAGE, shape.latent_frames * _frame_rows(shape.height, shape.width), index)


def _frame_rows(height: int, width: int) -> int:
    """Rows of one latent frame of `height` x `width` latents."""
    return even(height) // PATCH * (even(width) // PATCH)


def _shown_guides(guides: Sequence[GuideInput], rows: int) -> Iterator[str | int]:
    """Labels as they are, vision blocks as their rows."""
    for number in range(1, 1 + sum(guide.shown for guide in guides)):
        yield f"<Picture {number}>: "
        yield rows


def _shown_references(references: Sequence[ReferenceInput]) -> Iterator[str | int]:
    counts = {"Picture": 0, "Video": 0, "Audio": 0}

    def label(kind: str) -> str:
        counts[kind] += 1
        return f"<{kind} {counts[kind]}>: "

    for reference in references:
        if reference.sound is not None:
            yield label("Audio")
        if reference.picture is not None:
            yield label("Picture")
            yield vision_rows(reference.width, reference.height)
        if reference.clip is not None:
            yield label("Video")
            yield from _blocks(reference.clip.frames, vision_rows(reference.width, reference.height))


def _blocks(frames: int, rows: int) -> Iterator[str | int]:
    """Timestamps and vision blocks of a clip. Two shown frames make a block; an odd last one is doubled."""
    shown = -(-frames // SAMPLE_EVERY)
    for first in range(0, shown, 2):
        last = min(first + 1, shown - 1)
        yield f"<{(first + last) / 4:.1f} seconds>"
        yield rows

"""Keyframes and references as packed rows, the same at every step of a run.

Takes clean latents, makes rows and adds the little noise that visual conditions carry (dit-contract §5.3). Does not
project them. Fed by `Dit.prepare`; the layout says which latent each segment is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from h3runtime.core import Keyframe, PackedLayout, Reference, Segment, SegmentKind
from h3runtime.denoiser.noise import audio_condition_rows, visual_condition_rows
from h3runtime.denoiser.rows import audio_rows, pad_to_even, patchify

_KEYFRAMES = (SegmentKind.COND, SegmentKind.COND_AUDIO)
_SOUNDS = (SegmentKind.COND_AUDIO, SegmentKind.REF_AUDIO)
_TARGET = (SegmentKind.TEXT, SegmentKind.AUDIO, SegmentKind.VIDEO)


def condition_rows(
    layout: PackedLayout, keyframes: Sequence[Keyframe], references: Sequence[Reference], seed: int
) -> Iterator[tuple[Segment, torch.Tensor]]:
    """Each condition segment, in packed order, with its fp32 rows: video [n, C*4] noised, audio [n, 32] clean.

    `seed` is the sampler's; every condition restarts it, so they share leading noise values. Never rounded (§4.1).
    """
    for segment in layout.segments:
        if segment.kind in _TARGET:
            continue
        origin = keyframes[segment.source] if segment.kind in _KEYFRAMES else references[segment.source]
        if segment.kind in _SOUNDS:
            assert origin.audio_latent is not None, f"segment {segment} has no audio latent"
            rows = audio_condition_rows(audio_rows(origin.audio_latent.float()), seed)
        else:
            assert origin.latent is not None, f"segment {segment} has no latent"
            rows = visual_condition_rows(patchify(pad_to_even(origin.latent.float())), seed)
        assert rows.shape[0] == segment.stop - segment.start, f"segment {segment} against {rows.shape[0]} rows"
        yield segment, rows


def is_sound(segment: Segment) -> bool:
    """Whether a condition's rows are audio."""
    return segment.kind in _SOUNDS

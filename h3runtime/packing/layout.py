"""Where every row of the packed sequence comes from, and where it sits on the rotary clock.

Does the order of segments and the float64 position ids; moves no latent data. Fed by `engine` with shapes and the
text's tags; the `PackedLayout` it makes is read by the DiT and the attention backends.

    text | keyframes | references | audio | video                                       (dit-contract §2.1)

A keyframe is its video rows, then its sound. A reference clip is its soundtrack, then its video rows. A video frame of
h x w latents is (h/2)(w/2) rows, h outer; A audio latents are 2A rows, all of the left channel first (§2.2).

The clock counts audio latents, 40 a second, so a pixel frame is 5/3 (§3.3). Text rows tick 0..L-1; references follow,
each moving the clock on by its own length; target sound and picture start together where the last one ends; keyframes
are placed on the target's own time. h and w are centred so that every canvas has the area of [0, 32) x [0, 32) (§3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import KeyframeShape, PackedLayout, ReferenceShape, Segment, SegmentKind
from h3runtime.packing.geometry import FRAMES_PER_LATENT

PATCH: Final = 2
"""Latent rows and columns of one packed row (dit-contract §1.1)."""
AXIS_LENGTH: Final = 32
"""What one side of a square canvas spans on the rotary axes (§3.2)."""
FRAME_TICKS: Final = 5 / 3
"""Clock of one pixel frame: 40 / 24 (§3.3)."""
IMAGE_TICKS: Final = 1.0
"""How far a reference image moves the clock (§3.4)."""

Positions = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """Rotary coordinates of one latent frame's rows: h [h/2], w [w/2]."""

    h: Positions
    w: Positions

    @classmethod
    def of(cls, height: int, width: int) -> Grid:
        """The grid of a latent frame; odd sides count as padded to even (§2.2)."""
        height, width = even(height), even(width)
        scale = math.sqrt(height * width)
        return cls(_axis(height, scale), _axis(width, scale))

    def video(self, start: float, latent_frames: int) -> Positions:
        """[t (h/2)(w/2), 3]: frames from clock `start`, rows of a frame h outer."""
        t, h, w = np.meshgrid(start + frame_clock(latent_frames), self.h, self.w, indexing="ij")
        return np.stack([t, h, w], axis=-1).reshape(-1, 3)

    def audio(self, start: float, audio_latents: int) -> Positions:
        """[2A, 3]: left at the first w coordinate, right at the last, h = 0 (§3.4)."""
        clock = np.tile(start + np.arange(audio_latents, dtype=np.float64), 2)
        side = np.repeat(self.w[[0, -1]], audio_latents)
        return np.stack([clock, np.zeros_like(clock), side], axis=-1)


@dataclass(frozen=True, slots=True)
class Block:
    """One segment before it has a place."""

    kind: SegmentKind
    positions: Positions
    source: int = -1


def even(side: int) -> int:
    """A latent side as the packed grid has it."""
    return side + side % PATCH


def frame_ticks(latent_frames: int) -> list[float]:
    """Clock that each latent frame spans: 5/3 for the first of every five, 20/3 for the others (§3.3)."""
    return [FRAME_TICKS * FRAMES_PER_LATENT[k % len(FRAMES_PER_LATENT)] for k in range(latent_frames)]


def frame_clock(latent_frames: int) -> Positions:
    """Clock at which each latent frame starts, from 0."""
    return np.concatenate(([0.0], np.cumsum(frame_ticks(latent_frames))))[:-1]


def reference_ticks(reference: ReferenceShape) -> float:
    """How far a reference moves the clock (§3.4). The sum is sequential, as ComfyUI's."""
    if reference.kind == "image":
        return IMAGE_TICKS
    if reference.kind == "audio":
        return float(reference.audio_latents)
    return max(float(reference.audio_latents), sum(frame_ticks(reference.latent_frames)))


def pack(
    latent_frames: int,
    height: int,
    width: int,
    audio_latents: int,
    text_tags: NDArray[np.int64],
    keyframes: Sequence[KeyframeShape] = (),
    references: Sequence[ReferenceShape] = (),
) -> PackedLayout:
    """The layout of one request.

    latent_frames, height, width, audio_latents: target latent grid T, h, w and A. text_tags: int64 [L].
    keyframes: on the target's grid, in the order of the presentation. references: in request order, which is semantic.
    """
    grid = Grid.of(height, width)
    origin = float(len(text_tags))
    references_at = []
    for reference in references:
        references_at.append(origin)
        origin += reference_ticks(reference)
    blocks = [
        Block(SegmentKind.TEXT, _text(len(text_tags))),
        *_keyframe_blocks(keyframes, grid, origin),
        *_reference_blocks(references, references_at, grid),
        Block(SegmentKind.AUDIO, grid.audio(origin, audio_latents)),
        Block(SegmentKind.VIDEO, grid.video(origin, latent_frames)),
    ]
    return PackedLayout(
        latent_frames=latent_frames,
        height=even(height),
        width=even(width),
        audio_latents=audio_latents,
        segments=_segments(blocks),
        position_ids=np.concatenate([block.positions for block in blocks]),
        text_tags=text_tags,
    )


def _axis(side: int, scale: float) -> Positions:
    share, count = side / scale, side // PATCH
    index = np.arange(count, dtype=np.float64)
    return (index * (share / count) + (1 - share) / 2) * AXIS_LENGTH


def _text(rows: int) -> Positions:
    clock = np.arange(rows, dtype=np.float64)
    return np.stack([clock, np.zeros_like(clock), np.zeros_like(clock)], axis=-1)


def _keyframe_blocks(keyframes: Sequence[KeyframeShape], grid: Grid, origin: float) -> Iterator[Block]:
    for index, keyframe in enumerate(keyframes):
        start = origin + FRAME_TICKS * keyframe.frame
        if keyframe.latent_frames:
            yield Block(SegmentKind.COND, grid.video(start, keyframe.latent_frames), index)
        if keyframe.audio_latents:
            yield Block(SegmentKind.COND_AUDIO, grid.audio(start, keyframe.audio_latents), index)


def _reference_blocks(references: Sequence[ReferenceShape], starts: Sequence[float], target: Grid) -> Iterator[Block]:
    for index, (reference, start) in enumerate(zip(references, starts, strict=True)):
        if reference.kind == "audio":
            yield Block(SegmentKind.REF_AUDIO, target.audio(start, reference.audio_latents), index)
            continue
        own = Grid.of(reference.height, reference.width)
        if reference.audio_latents:
            yield Block(SegmentKind.REF_AUDIO, own.audio(start, reference.audio_latents), index)
        yield Block(SegmentKind.REF_IMAGE, own.video(start, reference.latent_frames), index)


def _segments(blocks: Sequence[Block]) -> tuple[Segment, ...]:
    stops = np.cumsum([len(block.positions) for block in blocks]).tolist()
    starts = [0, *stops[:-1]]
    return tuple(Segment(b.kind, i, j, b.source) for b, i, j in zip(blocks, starts, stops, strict=True))

"""Which timestep every packed row reads.

One forward serves rows at several noise levels. Its M distinct timesteps, ascending, are M rows of every AdaLN table; a
packed row of timestep i and modality m reads row i*3 + m of a block's table (dit-contract §4.2). Makes no vector. Fed
by `Dit` with layouts, clocks and masks; read by `Dit` and `modulation`.

Without masks the map is a few contiguous segments. With them every target row has its own timestep, and the map is an
index of S integers; no vector is ever copied per row except a few thousand rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.core import Modality, PackedLayout, SegmentKind
from h3runtime.denoiser.config import MODALITIES
from h3runtime.denoiser.schedule import Timesteps

PIECE_ROWS: Final = 4096
"""Rows whose vectors are gathered at once where each row has its own: bounds the copy, 44 MB at the real width."""

Timeline = tuple[float, ...]
"""Distinct timesteps of one forward, ascending, as Python floats: equality is exact (dit-contract §11.2)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Packed rows [start, stop) of one kind and one modality; a text segment splits where its tags change."""

    kind: SegmentKind
    start: int
    stop: int
    modality: int


_MODALITY: Final = {
    SegmentKind.COND: Modality.VIDEO,
    SegmentKind.REF_IMAGE: Modality.VIDEO,
    SegmentKind.VIDEO: Modality.VIDEO,
    SegmentKind.COND_AUDIO: Modality.AUDIO,
    SegmentKind.REF_AUDIO: Modality.AUDIO,
    SegmentKind.AUDIO: Modality.AUDIO,
}


def runs(layout: PackedLayout) -> tuple[Run, ...]:
    """The whole sequence as runs, in order."""
    found: list[Run] = []
    for segment in layout.segments:
        if segment.kind is SegmentKind.TEXT:
            found += _tag_runs(layout.text_tags.tolist(), segment.start)
        else:
            found.append(Run(segment.kind, segment.start, segment.stop, int(_MODALITY[segment.kind])))
    return tuple(found)


def _tag_runs(tags: list[int], start: int) -> Iterator[Run]:
    """Text rows, split where the tag changes."""
    begin = 0
    for i in range(1, len(tags) + 1):
        if i == len(tags) or tags[i] != tags[begin]:
            yield Run(SegmentKind.TEXT, start + begin, start + i, tags[begin])
            begin = i


@dataclass(frozen=True, slots=True)
class RowMap:
    """Which table row each packed row reads.

    segments: (start, stop, table row), contiguous and ascending.
    index:    int32 [S] table row of each packed row, or None; with it, `segments` is empty.
    """

    segments: tuple[tuple[int, int, int], ...]
    index: torch.Tensor | None = None

    def pieces(self) -> Iterator[tuple[slice, int | torch.Tensor]]:
        """(packed rows, table row or rows [n]) that cover the sequence."""
        for start, stop, row in self.segments:
            yield slice(start, stop), row
        if self.index is not None:
            for start in range(0, self.index.shape[0], PIECE_ROWS):
                piece = slice(start, start + PIECE_ROWS)
                yield piece, self.index[piece]

    def final(self, start: int, stop: int) -> RowMap:
        """The map of packed rows [start, stop) alone, counted from 0, into the final layer's table."""
        if self.index is not None:
            return RowMap((), self.index[start:stop] // MODALITIES)
        clipped = ((max(a, start) - start, min(b, stop) - start, row // MODALITIES) for a, b, row in self.segments)
        return RowMap(tuple(s for s in clipped if s[0] < s[1]))


@dataclass(frozen=True, slots=True)
class Clock:
    """One forward's distinct timesteps and who reads which."""

    timeline: Timeline
    rows: RowMap


def clock(sequence: Sequence[Run], times: Timesteps) -> Clock:
    """Every row of a kind at that kind's timestep (dit-contract §5.7)."""
    timeline = times.distinct(run.kind for run in sequence)
    place = {t: i for i, t in enumerate(timeline)}
    segments = tuple((run.start, run.stop, place[times.of(run.kind)] * MODALITIES + run.modality) for run in sequence)
    return Clock(timeline, RowMap(segments))


def masked_clock(
    sequence: Sequence[Run], times: Timesteps, video: torch.Tensor | None, audio: torch.Tensor | None
) -> Clock:
    """As `clock`, with target rows at their own timesteps (dit-contract §8, noise masks).

    video [video rows], audio [audio rows]: share of noise each target row keeps, 1 = generate; None = all 1.
    A row of mask m reads min(1 - m*sigma, what conditions read), in fp32.
    """
    labels = {
        SegmentKind.VIDEO: row_timesteps(video, times.sigma_video, times.visual_condition),
        SegmentKind.AUDIO: row_timesteps(audio, times.sigma_audio, times.audio_condition),
    }
    fixed = {times.of(run.kind) for run in sequence if labels.get(run.kind) is None}
    own = {t for label in labels.values() if label is not None for t in torch.unique(label).tolist()}
    timeline = tuple(sorted(fixed | own | {times.video, times.audio}))
    device = next(label.device for label in labels.values() if label is not None)
    known = torch.tensor(timeline, dtype=torch.float64, device=device)
    index = torch.empty(sequence[-1].stop, dtype=torch.int32, device=device)
    for run in sequence:
        label = labels.get(run.kind)
        place = timeline.index(times.of(run.kind)) if label is None else torch.searchsorted(known, label.double())
        index[run.start : run.stop] = place * MODALITIES + run.modality
    return Clock(timeline, RowMap((), index))


def row_timesteps(mask: torch.Tensor | None, sigma: float, pin: float) -> torch.Tensor | None:
    """fp32 timestep of each masked row, or None where there is no mask."""
    return None if mask is None else (1.0 - mask.float() * sigma).clamp(max=pin)

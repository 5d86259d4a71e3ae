"""The AdaLN tables of a run, made ahead of its loop.

Vectors depend on timesteps alone, and a run's timesteps are known before it starts. So they are made in windows of
steps that fit a budget, and no AdaLN weight is touched between the blocks of a forward. A window computes each step's
own M rows by themselves, as the step alone would: a matmul over another number of rows may round differently, and a
plan must not change bits. Fed by `Dit.prepare` with the model's projections; read by `Dit.forward`.

    block(i)  [M*3, 6*hidden]  linear(silu(e)); curve form linear(e) in fp32; rounded to the compute dtype
    final     [M, 2*hidden]    the same, left fp32 in curve form (dit-contract §1.4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from h3runtime.denoiser.config import BLOCK_VECTORS, FINAL_VECTORS, MODALITIES
from h3runtime.denoiser.modulation import AdaLn
from h3runtime.denoiser.timeline import Timeline

WINDOW_BYTES: Final = 512 * 2**20
"""Budget of precomputed modulation (architecture, Modulation)."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Modulation of one forward: `block(i)` [M*3, 6*hidden] and `final` [M, 2*hidden]."""

    block: Callable[[int], torch.Tensor]
    final: torch.Tensor


class Modulation(Protocol):
    """Who has the tables of a run's forwards."""

    def at(self, timeline: Timeline) -> Tables:
        """The tables of one forward."""
        ...


class Projector:
    """What makes tables: a model's timestep embedding and its AdaLN projections, first to last, final last.

    embed: timeline -> e as the projections read it (activated). dtype: of the block tables.
    """

    def __init__(
        self, embed: Callable[[Timeline], torch.Tensor], blocks: Sequence[AdaLn], final: AdaLn, dtype: torch.dtype
    ) -> None:
        self.embed = embed
        self.blocks = blocks
        self.final = final
        self.dtype = dtype

    def block(self, index: int, e: torch.Tensor) -> torch.Tensor:
        """[M, time_dim] -> [M*3, 6*hidden]; modality rows of a timestep are neighbours."""
        return self._table(self.blocks[index](e))

    def _table(self, made: torch.Tensor) -> torch.Tensor:
        return made.reshape(made.shape[0] * MODALITIES, -1).to(self.dtype)

    def together(self, timelines: Sequence[Timeline]) -> list[Tables]:
        """Tables of several forwards, block by block, so that each projection's weight is read and decoded once."""
        embedded = [self.embed(timeline) for timeline in timelines]
        made = [[self._table(table) for table in block(embedded)] for block in self.blocks]
        columns = zip(*made, strict=True) if made else [()] * len(embedded)
        return [Tables(held.__getitem__, last) for held, last in zip(columns, self.final(embedded), strict=True)]

    def lazily(self, timeline: Timeline) -> Tables:
        """Tables of one forward that makes each block's when it gets there, for timelines beyond the budget."""
        e = self.embed(timeline)

        def block(index: int) -> torch.Tensor:
            return self.block(index, e)

        return Tables(block, self.final(e))


class Plan:
    """The modulation of one run, made window by window as its loop gets there.

    steps: the run's timelines in order. hidden, budget: decide how many steps a window holds; a step that doesn't fit
    alone, and a timeline the run didn't announce, is made on its own.
    """

    def __init__(
        self, projector: Projector, steps: Sequence[Timeline], hidden: int, budget: int = WINDOW_BYTES
    ) -> None:
        self._projector = projector
        self._row_bytes = row_bytes(len(projector.blocks), hidden, projector.dtype)
        self._budget = budget
        self._windows = windows([len(step) * self._row_bytes for step in steps], budget)
        self._steps = tuple(steps)
        self._held: dict[Timeline, Tables] = {}
        if self._windows:
            self._fill(self._windows[0])

    def at(self, timeline: Timeline) -> Tables:
        """The tables of one forward."""
        if timeline not in self._held and timeline in self._steps:
            index = self._steps.index(timeline)
            window = next((w for w in self._windows if index in w), None)
            if window is not None:
                self._fill(window)
        held = self._held.get(timeline)
        return held if held is not None else self._alone(timeline)

    def _fill(self, window: range) -> None:
        """Drop the window held, then make this one: never two in memory."""
        self._held = {}
        timelines = [self._steps[i] for i in window]
        self._held = dict(zip(timelines, self._projector.together(timelines), strict=True))

    def _alone(self, timeline: Timeline) -> Tables:
        if len(timeline) * self._row_bytes > self._budget:
            return self._projector.lazily(timeline)
        return self._projector.together([timeline])[0]


def row_bytes(blocks: int, hidden: int, dtype: torch.dtype) -> int:
    """Bytes of one timestep's vectors: 9.7 MB for the real model in bf16 (dit-contract §11.3)."""
    return (blocks * MODALITIES * BLOCK_VECTORS + FINAL_VECTORS) * hidden * dtype.itemsize


def windows(sizes: Sequence[int], budget: int) -> list[range]:
    """Consecutive steps packed greedily into `budget` bytes; a step larger than that is in no window."""
    found: list[range] = []
    start, held = 0, 0
    for i, size in enumerate([*sizes, budget + 1]):
        if held + size > budget:
            if i > start:
                found.append(range(start, i))
            start, held = i, 0
        if size > budget:
            start = i + 1
        else:
            held += size
    return found

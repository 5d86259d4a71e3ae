"""What the joint training practises when: shelves, tasks and the learning rate over the share of its time.

At first the smallest clips from text alone and from a first frame, where most is learnt a second; then every task, then
every size. A run may be one part of a longer training (`Recipe.span`), so shares are of the whole. Fed by `joint`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from h3runtime.nano.training.clips import Size
from h3runtime.nano.training.tasks import TASKS, Task


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shelves and how often each is drawn from in the end."""

    sizes: tuple[Size, ...] = (
        Size(128, 128, 22, 20480),
        Size(192, 128, 22, 2048),
        Size(128, 192, 22, 2048),
        Size(192, 192, 39, 2048),
        Size(320, 192, 39, 512),
        Size(640, 384, 124, 16),
    )
    weights: tuple[float, ...] = (0.72, 0.07, 0.06, 0.1, 0.04, 0.01)


@dataclass(frozen=True, slots=True)
class Phase:
    """Until this share of the time: the part of all steps that goes to the first shelf beyond its weight, and to the
    tasks named beyond theirs."""

    until: float
    first_shelf: float
    favoured: tuple[str, ...]
    favour: float


PHASES: Final = (
    Phase(0.2, 1.0, ("text", "first"), 1.0),
    Phase(0.6, 0.5, ("text", "first"), 0.3),
    Phase(1.0, 0.0, (), 0.0),
)
LEAST: Final = 0.002
"""Of all steps: what would come less often isn't worth its preparation."""


class Course:
    """Which shelf and task come next. weights: of `Sizes`; possible: whether a shelf has captions for a task."""

    def __init__(self, weights: Sequence[float], possible: Callable[[int, Task], bool], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.pairs = [(n, task) for n in range(len(weights)) for task in TASKS if possible(n, task)]
        shelf = np.array(weights) / sum(weights)
        self._tables = [_table(self.pairs, shelf, phase) for phase in PHASES]

    def draw(self, share: float) -> tuple[int, Task]:
        """Shelf and task of a step, a `share` of the time gone."""
        phase = next((i for i, phase in enumerate(PHASES) if share < phase.until), len(PHASES) - 1)
        return self.pairs[int(self.rng.choice(len(self.pairs), p=self._tables[phase]))]


def _table(pairs: Sequence[tuple[int, Task]], shelf: NDArray[np.float64], phase: Phase) -> NDArray[np.float64]:
    """How often each pair comes: float64 [pairs]."""
    first = np.arange(len(shelf)) == 0
    shelf = shelf * (1 - phase.first_shelf) + first * phase.first_shelf
    favoured = {t.name: t.share for t in TASKS if t.name in phase.favoured}
    total = sum(favoured.values()) or 1.0
    task = {t.name: t.share * (1 - phase.favour) + phase.favour * favoured.get(t.name, 0) / total for t in TASKS}
    table = np.array([shelf[number] * task[each.name] for number, each in pairs])
    table = np.where(table / table.sum() >= LEAST, table, 0)
    return np.asarray(table / table.sum(), np.float64)


def rate_at(step: int, share: float, *, rate: float, warm: int, cool: float) -> float:
    """Learning rate at `step` of a run, a `share` of the whole time gone: it rises over `warm` steps and falls over the
    last `cool` share to a fiftieth."""
    rise = min(1.0, (step + 1) / warm)
    fall = min(1.0, max(0.0, 1 - share) / cool) if cool else 1.0
    return rate * rise * max(0.02, math.sin(fall * math.pi / 2) ** 2)

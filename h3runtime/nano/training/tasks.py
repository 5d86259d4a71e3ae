"""What the model is asked in training: the tasks of H3, and what comes before a prompt in each.

    text only | first, last, first and last frame, a guide in the middle | a picture of several sizes, with and without
    a voice

Numbers and names only. `lectern` makes batches of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from h3runtime.nano.training.clips import Wording
from h3runtime.nano.training.text_batches import BatchPiece


@dataclass(frozen=True, slots=True)
class Task:
    """stills: which of a shelf's stills (first, middle, last) are keyframes; shown: the text encoder sees them too.
    side: pixels of a square reference picture, 0 without one."""

    name: str
    share: float
    stills: tuple[int, ...] = ()
    shown: bool = True
    side: int = 0
    voice: bool = False

    @property
    def picture(self) -> bool:
        return self.side > 0

    @property
    def wording(self) -> Wording:
        return self.picture, self.voice


TASKS: Final = (
    Task("text", 0.50),
    Task("first", 0.12, (0,)),
    Task("first_last", 0.08, (0, 2)),
    Task("last", 0.06, (2,)),
    Task("guide", 0.03, (1,), shown=False),
    Task("picture_64", 0.05, side=64),
    Task("picture_96", 0.02, side=96),
    Task("picture_128", 0.04, side=128),
    Task("picture_192", 0.02, side=192),
    Task("picture_64_voice", 0.03, side=64, voice=True),
    Task("picture_128_voice", 0.05, side=128, voice=True),
)
"""A voice never comes alone: the service asks for a picture or a clip beside it. A picture has at most the canvas's
area (conditioning contract §3.3), and of one size alone the model would know only that size."""
SIDES: Final = tuple(sorted({task.side for task in TASKS if task.side}))


def before(task: Task, shown: Sequence[BatchPiece]) -> list[BatchPiece]:
    """The presentation ahead of the prompt: labels and the pixels of pictures (conditioning contract §1.3)."""
    pieces: list[BatchPiece] = []
    for index, pixels in enumerate(shown, 1):
        pieces += [f"<Picture {index}>: ", pixels]
    return pieces + (["<Audio 1>: "] if task.voice else [])


def shares(batches: Mapping[str, int]) -> str:
    """How often each task came, in words."""
    total = max(1, sum(batches.values()))
    return ", ".join(f"{name} {count / total:.0%}" for name, count in sorted(batches.items()))

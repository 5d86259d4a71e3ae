"""What the model is asked in training: the tasks of H3, and what comes before a prompt in each.

    text only | first, last, first and last frame, a guide in the middle | a picture, with and without a voice

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
    """stills: which of a shelf's stills (first, middle, last) are keyframes; shown: the text encoder sees them too."""

    name: str
    share: float
    stills: tuple[int, ...] = ()
    shown: bool = True
    picture: bool = False
    voice: bool = False

    @property
    def wording(self) -> Wording:
        return self.picture, self.voice


TASKS: Final = (
    Task("text", 0.50),
    Task("first", 0.12, (0,)),
    Task("first_last", 0.08, (0, 2)),
    Task("last", 0.06, (2,)),
    Task("guide", 0.03, (1,), shown=False),
    Task("picture", 0.13, picture=True),
    Task("picture_voice", 0.08, picture=True, voice=True),
)
"""A voice never comes alone: the service asks for a picture or a clip beside it."""


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

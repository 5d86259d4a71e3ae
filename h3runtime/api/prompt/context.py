"""What a prompt is judged against: the task, the clip's length, and how many inputs of each kind the model is shown.

Filled by `judging` from guides and references that are resolved; read by `judge`, `assemble`
and `lint`. Counters are those of the presentation (conditioning contract §1.3): they start at 1, one per modality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from h3runtime.core import FPS, GuideInput, ReferenceInput, Task


@dataclass(frozen=True, slots=True)
class PromptContext:
    """What the prompt's labels can mean.

    seconds: of the clip, F / 24. pictures, videos, sounds: the highest `<Picture i>`, `<Video k>`, `<Audio j>` shown;
    anchored inputs that the text encoder doesn't see have no label and don't count. first_shown, last_shown: whether
    first and last frame are among the pictures, which only base tasks have. soundtracks: the `<Audio j>` that are a
    reference clip's own sound, and need no mention.
    """

    task: Task
    seconds: float
    pictures: int = 0
    videos: int = 0
    sounds: int = 0
    first_shown: bool = False
    last_shown: bool = False
    soundtracks: frozenset[int] = frozenset()

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label of an input, in the order picture, video, audio."""
        counts = {"Picture": self.pictures, "Video": self.videos, "Audio": self.sounds}
        return tuple(f"<{kind} {number}>" for kind, count in counts.items() for number in range(1, count + 1))


def context_of(
    task: Task, frames: int, guides: Sequence[GuideInput] = (), references: Sequence[ReferenceInput] = ()
) -> PromptContext:
    """The context of a resolved request: `frames` F of the target, guides and references in packed order."""
    shown = {guide.frame for guide in guides if guide.shown}
    audible = [reference.kind for reference in references if reference.sound is not None]
    kinds = [reference.kind for reference in references]
    return PromptContext(
        task=task,
        seconds=frames / FPS,
        pictures=len(shown) + kinds.count("image"),
        videos=kinds.count("video"),
        sounds=len(audible),
        first_shown=0 in shown,
        last_shown=frames - 1 in shown,
        soundtracks=frozenset(number for number, kind in enumerate(audible, 1) if kind == "video"),
    )

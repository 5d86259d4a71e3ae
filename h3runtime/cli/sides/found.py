"""All that a comparison of two sides found, as numbers. Filled by `session`; read by `report`, `chart` and `film`."""

from __future__ import annotations

from dataclasses import dataclass

from h3runtime.cli.sides.attribution import StepBlocks
from h3runtime.cli.sides.clips import ClipsFound
from h3runtime.cli.sides.making import Made
from h3runtime.cli.sides.steps import StepsFound


@dataclass(frozen=True, slots=True)
class SidesFound:
    """blocks: of each chosen step; empty where none was chosen or `why_no_blocks` says why there are none. way, why: of
    the engines (`engines.Placed`)."""

    a: Made
    b: Made
    way: str
    why: str
    steps: StepsFound
    clips: ClipsFound
    blocks: tuple[StepBlocks, ...]
    why_no_blocks: str

    @property
    def identical(self) -> bool:
        """Nothing differs anywhere: steps, blocks, pictures, sound."""
        steps = (point.streams.values() for point in (*self.steps.denoised, *self.steps.latents))
        blocks = (found.whole.identical and found.worst is None for step in self.blocks for found in step.blocks)
        return (
            self.clips.pictures.identical
            and all(sums.identical for streams in steps for sums in streams)
            and all(blocks)
            and all(step.entering.identical for step in self.blocks)
        )

    @property
    def worst_step(self) -> StepBlocks | None:
        """The chosen step in which a block adds most."""
        return max(self.blocks, key=_most, default=None)


def _most(step: StepBlocks) -> float:
    return max((found.whole.rel_l2 or 0.0 for found in step.blocks), default=0.0)

"""Which steps of a run were reused, and the changes that decided it.

Written by what `wrapping` makes; read by the loop, which tells each finished step of it, and from there by progress and
diagnostics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from h3runtime.denoiser.reuse.rule import Change
from h3runtime.denoiser.sampler import Step


@dataclass(slots=True)
class ReuseLog:
    """Of one run; steps count from 0. changes: picture and sound, of the steps that were asked about: those within the
    window that have a step before them."""

    reused: set[int] = field(default_factory=set)
    changes: dict[int, Change] = field(default_factory=dict)

    def told(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The same steps, each with what is known of it."""
        for step in steps:
            yield replace(step, reused=step.index in self.reused, change=self.changes.get(step.index))

"""When a step may be reused: numbers only, no tensor.

    window        sigma_end < sigma <= sigma_start, sigma = S_shift(1 - share)      (dit-contract §9)
    easycache     the changes of all steps since the last computed one, this one included, add up to less
    h3_cache      the change of this step is less
    first_block   likewise, and its change is one since the last computed step

A change is a pair, picture and sound, and both must be below the threshold: what a picture can spare is no measure of
what a sound can. What has changed by how much is `change`'s part. Below means below, so that a threshold of 0 reuses
nothing; a change that isn't a number is below nothing. Fed by the networks of this package and by `outlook`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from h3runtime.core import StepReuse
from h3runtime.denoiser.schedule import shift_base

Change = tuple[float, float]
"""Relative change of picture and sound."""


@dataclass(frozen=True, slots=True)
class Window:
    """The sigmas at which steps may be reused: (last, first]."""

    first: float
    last: float

    @classmethod
    def of(cls, settings: StepReuse, shift: float) -> Window:
        return cls(shift_base(1.0 - settings.start, shift), shift_base(1.0 - settings.end, shift))

    def holds(self, sigma: float) -> bool:
        return self.last < sigma <= self.first


@dataclass(slots=True)
class Rule:
    """One run's decisions. cumulative: changes add up until a step is computed."""

    threshold: float
    cumulative: bool
    _sums: Change = field(default=(0.0, 0.0), init=False)

    @classmethod
    def of(cls, settings: StepReuse) -> Rule:
        return cls(settings.threshold, settings.mode == "easycache")

    def allows(self, change: Change) -> bool:
        """Whether a step that changed so much is reused. Asked once a step: what is allowed is counted."""
        video, audio = self._sums if self.cumulative else (0.0, 0.0)
        self._sums = video + change[0], audio + change[1]
        return self._sums[0] < self.threshold and self._sums[1] < self.threshold

    def computed(self) -> None:
        """A step was computed: what changes from here on counts from nothing."""
        self._sums = (0.0, 0.0)

"""Which requests a measurement speaks for: those of its bucket, an octave of canvas, of length and of steps.

What an approximation costs depends on how much there is to leave out: on pixels, frames and how far apart the steps
are. Within a factor of two of each a measurement is taken to hold; beyond that a level has to be measured again. The
rest of the schedule (sampler, scheduler, shifts) has no octaves and must be the measured one.
"""

from __future__ import annotations

from dataclasses import dataclass

from h3runtime.core import SamplerSettings


@dataclass(frozen=True, slots=True)
class Bucket:
    """Least pixels of the canvas, frames and steps, powers of two; up to twice as many belong to it."""

    pixels: int
    frames: int
    steps: int

    @classmethod
    def of(cls, width: int, height: int, frames: int, steps: int) -> Bucket:
        return cls(_octave(width * height), _octave(frames), _octave(steps))

    @property
    def name(self) -> str:
        return f"{self.pixels}px-{self.frames}f-{self.steps}s"

    @property
    def told(self) -> str:
        spans = ((self.pixels, "pixels"), (self.frames, "frames"), (self.steps, "steps"))
        return ", ".join(f"{least} to {2 * least - 1} {what}" for least, what in spans)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What of a schedule must be as it was measured."""

    sampler: str
    scheduler: str
    shift: float
    audio_shift: float

    @classmethod
    def of(cls, settings: SamplerSettings) -> Sampling:
        return cls(settings.sampler, settings.scheduler, settings.shift, settings.audio_shift)


def _octave(count: int) -> int:
    """The largest power of two that isn't above it."""
    return 1 << (count.bit_length() - 1)

"""What a comparison found: sums for every stream and every frame, nothing formatted yet.

Filled by `media` and `tensors`; read by `limits`, `report`, `table` and `plot`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from h3runtime.media.agreement import Agreement
from h3runtime.media.similarity import psnr

Kind = Literal["clips", "frames", "latents", "steps"]
Noun = Literal["frame", "latent", "step"]
OnPart = Callable[[int, int], None]
"""Told how many parts of how many are done."""


@dataclass(frozen=True, slots=True)
class Point:
    """One frame, latent or step. `seconds` into the clip; `ssim` of pictures only."""

    index: int
    seconds: float | None
    is_join: bool
    sums: Agreement
    ssim: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order. `name` is their key in the report. `has_joins`: some of them may come from a chunk join."""

    name: str
    noun: Noun
    points: tuple[Point, ...]
    has_joins: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One comparison.

    facts:      what both have in common (`width`, `frames`, ...), ready for JSON.
    streams:    sums by stream: `video`, `audio`; of steps `x`, `denoised`. Pictures in 8-bit levels, sound in samples
                of -1..1, latents as they are.
    series:     the first is the one whose worst points and joins are told.
    log_mel_db: of sound.
    samples:    of a's and b's sound, a channel.
    """

    kind: Kind
    a: Path
    b: Path
    facts: Mapping[str, Any]
    streams: Mapping[str, Agreement]
    series: tuple[Series, ...] = ()
    log_mel_db: float | None = None
    samples: tuple[int, int] | None = None
    warnings: tuple[str, ...] = field(default=())

    @property
    def has_pictures(self) -> bool:
        return self.kind in ("clips", "frames") and "video" in self.streams

    @property
    def whole(self) -> Agreement:
        """All tensors together; of a clip its pictures, since sound has another unit."""
        if self.kind in ("clips", "frames"):
            return self.streams["video" if self.has_pictures else "audio"]
        return total(self.streams.values())

    @property
    def identical(self) -> bool:
        same_length = self.samples is None or self.samples[0] == self.samples[1]
        return same_length and all(sums.identical for sums in self.streams.values())

    @property
    def psnr(self) -> float | None:
        """Of all frames together; None if they are identical."""
        return psnr(self.whole.mean_square)

    @property
    def ssim(self) -> float:
        """Mean over the frames."""
        return mean_ssim(self.series[0].points)


def total(sums: Iterable[Agreement]) -> Agreement:
    return sum(sums, Agreement())


def mean_ssim(points: Sequence[Point]) -> float:
    return sum(point.ssim or 0.0 for point in points) / len(points)


def worst(series: Series, count: int) -> tuple[Point, ...]:
    """The `count` points that differ most, worst first: by mean square for pictures (the lowest PSNR), by relative L2
    for latents. What doesn't differ is not among them."""
    different = [point for point in series.points if not point.sums.identical]
    if series.noun == "frame":
        ordered = sorted(different, key=lambda p: (-p.sums.mean_square, p.index))
    else:
        ordered = sorted(different, key=lambda p: (-_distance(p), p.index))
    return tuple(ordered[:count])


def _distance(point: Point) -> float:
    return float("inf") if point.sums.rel_l2 is None else point.sums.rel_l2

"""The fastest choice that keeps a level's promise, found without proving the others.

    try       a few clips of every base: each linear with each attention that the level may take, and what the exact
              clips were made by, if it is loaded; their seconds put them in order
    prove     in that order, until one keeps the promise by all clips. What is slower than that stays unproven, and so
              does what is slower than exact clips
    reuse     on the base that was proven, and on the fastest that looks as close as `high` has to be: for each mode
              the widest threshold at which the mean of a few clips keeps the level, by halving (`ladder`)
    prove     those in order of their seconds, as long as they are faster than the base; one that fails makes way for
              the next narrower threshold of its mode
    clock     what passed, in turn with exact clips: the fastest then is the answer. Among them are the exact clips' own
              choice, and what stricter levels settled on: a level is never slower than these

What is returned was measured and passed by all prompts and seeds. Pure: `Attempts` does the work. Fed by `running`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from h3runtime.cli.calibration.ladder import rungs, widest
from h3runtime.cli.calibration.outcome import Outcome, Timed
from h3runtime.core import CacheMode
from h3runtime.quality.levels import LEVELS, Choice, Level

TRIED: Final = 3
"""Clips of a base. The first one compiles what its choice needs and isn't timed."""
SAMPLED: Final = 4
"""Clips of a threshold."""


class Attempts(Protocol):
    """Clips by an engine; `trials` says how many of them there are in the end."""

    def some(self, choice: Choice, count: int, level: Level, told: str) -> Outcome: ...

    def all(self, choice: Choice, level: Level, told: str) -> Outcome: ...

    def timed(self, outcomes: Sequence[Outcome], told: str) -> Sequence[Timed]: ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """exact: what the exact clips were made by, where the loaded engine has it. bases: without reuse, all of them."""

    bases: tuple[Choice, ...]
    reuse: tuple[CacheMode, ...]
    exact: Choice | None

    @property
    def all_bases(self) -> tuple[Choice, ...]:
        return tuple(dict.fromkeys([*self.bases, *([self.exact] if self.exact else [])]))

    def likely_clips(self, whole: int) -> int:
        """About how many clips a search takes, if the first or second that is proven passes. whole: of a proof."""
        reuse = 2 * SAMPLED * 3 * len(self.reuse) + whole if self.reuse else 0
        return TRIED * len(self.bases) + whole + reuse


def fastest(
    level: Level, candidates: Candidates, attempts: Attempts, kept: Sequence[Choice] = ()
) -> tuple[Outcome, Timed] | None:
    """None if nothing keeps the promise. kept: choices of stricter levels."""
    search = _Search(level, candidates, attempts)
    ranked = search.ranked()
    proven = next(search.proven(ranked), None)
    if proven is None:
        return None
    others = [*([candidates.exact] if candidates.exact else []), *kept]
    passed = {each.choice: each for each in map(search.prove, others) if each.meets(level)} | {proven.choice: proven}
    limit = min(each.undisturbed for each in passed.values())
    if (reusing := search.reusing(proven, ranked, limit)) is not None:
        passed[reusing.choice] = reusing
    timed = attempts.timed(list(passed.values()), f"{level.name}: timing what passed")
    return min(zip(passed.values(), timed, strict=True), key=lambda pair: pair[1].seconds)


@dataclass(frozen=True, slots=True)
class _Search:
    level: Level
    candidates: Candidates
    attempts: Attempts

    def ranked(self) -> list[Outcome]:
        """Bases by the seconds of a few clips, without the hopeless ones."""
        tried = [self._some(choice, TRIED, "trying") for choice in self.candidates.all_bases]
        return sorted((each for each in tried if not each.is_hopeless(self.level)), key=lambda each: each.undisturbed)

    def proven(self, ranked: Sequence[Outcome]) -> Iterator[Outcome]:
        found = (self.prove(each.choice) for each in ranked)
        return (each for each in found if each.meets(self.level))

    def prove(self, choice: Choice) -> Outcome:
        return self.attempts.all(choice, self.level, f"{self.level.name}: proving {choice.told}")

    def reusing(self, proven: Outcome, ranked: Sequence[Outcome], limit: float) -> Outcome | None:
        """The fastest choice with reuse that passes and takes fewer seconds than `limit`; None if there is none."""
        waiting: list[tuple[float, _Rung]] = []
        for base in self._reuse_bases(proven, ranked):
            for mode in self.candidates.reuse:
                ladder = _Ladder(base, mode)
                at = widest(len(ladder.thresholds), lambda index, ladder=ladder: self._holds(ladder, index))  # type: ignore[misc]
                self._wait(waiting, ladder, at)
        while waiting:
            seconds, rung = heapq.heappop(waiting)
            if seconds >= limit:
                return None
            if (found := self.prove(rung.choice)).meets(self.level):
                return found
            self._wait(waiting, rung.ladder, rung.index - 1)
        return None

    def _wait(self, waiting: list[tuple[float, _Rung]], ladder: _Ladder, index: int | None) -> None:
        """Into the queue, if it is likely to hold; else what is narrower than it."""
        while index is not None and index >= 0:
            rung = _Rung(ladder, index)
            if self._holds(ladder, index):
                heapq.heappush(waiting, (self._sampled(rung.choice).undisturbed, rung))
                return
            index -= 1

    def _holds(self, ladder: _Ladder, index: int) -> bool:
        return self._sampled(ladder.choice(index)).is_likely(self.level)

    def _sampled(self, choice: Choice) -> Outcome:
        return self._some(choice, SAMPLED, "trying")

    def _some(self, choice: Choice, count: int, doing: str) -> Outcome:
        return self.attempts.some(choice, count, self.level, f"{self.level.name}: {doing} {choice.told}")

    def _reuse_bases(self, proven: Outcome, ranked: Sequence[Outcome]) -> tuple[Choice, ...]:
        """What is close to exact clips leaves more room for reuse than what only just keeps the promise."""
        close = (each.choice for each in ranked if each.is_likely(LEVELS["high"]))
        return tuple(dict.fromkeys([proven.choice, *([first] if (first := next(close, None)) else [])]))


@dataclass(frozen=True, slots=True)
class _Ladder:
    """Thresholds of one mode on one base."""

    base: Choice
    mode: CacheMode

    @property
    def thresholds(self) -> tuple[float, ...]:
        return rungs(self.mode)

    def choice(self, index: int) -> Choice:
        return replace(self.base, cache_mode=self.mode, cache_threshold=self.thresholds[index])


@dataclass(frozen=True, slots=True)
class _Rung:
    ladder: _Ladder
    index: int

    @property
    def choice(self) -> Choice:
        return self.ladder.choice(self.index)

    def __lt__(self, other: _Rung) -> bool:
        """Of two that take as long, the narrower one first: it is closer."""
        return self.index < other.index

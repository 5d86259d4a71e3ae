"""What was made of one choice, and what that says of a level: kept, hopeless, doubtful, or likely.

    kept         all clips are there, and the 95 % bound of their mean is on the level's side: what evidence is made of
    hopeless     not even exact clips from now on could bring the mean to the level
    doubtful     after a few clips the mean is off by more than its own standard error. The bound would have to come out
                 on the right side in the end: of choices that just would, three in a hundred are given up so
    likely       the mean of a few clips is on the level's side. Of their scatter they say too little: one sound in
                 thirty that is far off would rule out what the other prompts can bear

Only `kept` is a promise. The others save clips: being wrong about one costs speed, never quality. Pure; fed by
`trials`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Final

from h3runtime.quality.bounds import lower_bound, upper_bound
from h3runtime.quality.evidence import Figure
from h3runtime.quality.levels import Choice, Level

DIGITS: Final = 6
DOUBT: Final = 4
"""Clips, of as many prompts, before anything is said of their scatter."""


@dataclass(frozen=True, slots=True)
class Clip:
    """choice: as `told`, or `exact`. seconds: of sampling. forwards: 0 where the engine refused the clip."""

    choice: str
    prompt: int
    seed: int
    ssim: float
    audio_db: float
    seconds: float
    forwards: int
    skipped_steps: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Median seconds of sampling a clip, and their ratio."""

    exact_seconds: float
    seconds: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """clips: in the order of all trials, as far as they were made. prompts, seeds: how many of each there are to be."""

    choice: Choice
    clips: tuple[Clip, ...]
    exact_seconds: float
    prompts: int
    seeds: int

    @property
    def is_complete(self) -> bool:
        return len(self.clips) == self.prompts * self.seeds

    @property
    def ssim(self) -> Figure:
        """Of all clips."""
        figures = [clip.ssim for clip in self.clips]
        return _figure(fmean(figures), lower_bound(self._by_prompt("ssim")), min(figures))

    @property
    def audio_db(self) -> Figure:
        """Of all clips."""
        figures = [clip.audio_db for clip in self.clips]
        return _figure(fmean(figures), upper_bound(self._by_prompt("audio_db")), max(figures))

    @property
    def seconds(self) -> float:
        """Of a clip; not of the first, which compiles what its choice needs, where there are others."""
        return median(clip.seconds for clip in self.clips[1:] or self.clips)

    @property
    def undisturbed(self) -> float:
        """Seconds of a clip, as its quickest forward has them: of a few clips on a machine that has other work the
        median says more of that."""
        timed = [clip for clip in self.clips[1:] or self.clips if clip.forwards]
        quickest = min((clip.seconds / clip.forwards for clip in timed), default=math.inf)
        return quickest * fmean(clip.forwards for clip in self.clips)

    @property
    def recorded(self) -> Timed:
        """By what was recorded of clips that were made at different times."""
        return Timed(self.exact_seconds, self.seconds, self.exact_seconds / max(self.seconds, 1e-9))

    def meets(self, level: Level) -> bool:
        if not self.is_complete or self._is_refused:
            return False
        return self.ssim.bound >= level.ssim and self.audio_db.bound <= level.audio_db

    def is_hopeless(self, level: Level) -> bool:
        count = self.prompts * self.seeds
        best_ssim = (sum(clip.ssim for clip in self.clips) + count - len(self.clips)) / count
        best_sound = sum(clip.audio_db for clip in self.clips) / count
        return self._is_refused or best_ssim < level.ssim or best_sound > level.audio_db

    def is_doubtful(self, level: Level) -> bool:
        if len(self.clips) < DOUBT:
            return False
        room_ssim, room_sound = self._rooms(level)
        return any(fmean(room) + stdev(room) / math.sqrt(len(room)) < 0 for room in (room_ssim, room_sound))

    def is_likely(self, level: Level) -> bool:
        return not self._is_refused and all(fmean(room) >= 0 for room in self._rooms(level))

    @property
    def _is_refused(self) -> bool:
        return any(clip.forwards == 0 for clip in self.clips)

    def _rooms(self, level: Level) -> tuple[list[float], list[float]]:
        """How far each clip is on the right side of the level, in SSIM and in dB."""
        return [clip.ssim - level.ssim for clip in self.clips], [level.audio_db - clip.audio_db for clip in self.clips]

    def _by_prompt(self, name: str) -> Sequence[Sequence[float]]:
        assert self.is_complete
        there = {(clip.prompt, clip.seed): getattr(clip, name) for clip in self.clips}
        return [[there[prompt, seed] for seed in range(self.seeds)] for prompt in range(self.prompts)]


def _figure(mean: float, bound: float, worst: float) -> Figure:
    return Figure(round(mean, DIGITS), round(bound, DIGITS), round(worst, DIGITS))

"""Clips of one choice against the exact ones: made one by one, recorded as they come, given up when there is no hope.

    FOLDER/clips.jsonl               a line for each clip that was made, exact or not
    FOLDER/exact-P-S.safetensors     latents of the exact clip of prompt P and seed S

Every choice makes its clips in one order: a first seed of all prompts, shuffled, then the next seed, so that the first
few of them are of as many prompts. A run that was stopped goes on behind the last whole line; the folder belongs to one
checkpoint, device, size, schedule and file of prompts (`calibrate` names it so). Makes nothing itself: `Maker` does.
Read by `search` and `proving`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from h3runtime.cli.calibration.made import Apart, Sampled
from h3runtime.cli.calibration.outcome import Clip, Outcome, Timed
from h3runtime.core import Latents
from h3runtime.engine.latents_file import read_latents, write_latents
from h3runtime.errors import (
    BackendUnavailable,
    CheckpointError,
    DegenerateOutput,
    EngineDead,
    NumericalError,
    OutOfMemory,
)
from h3runtime.quality.levels import Choice, Level

EXACT: Final = "exact"
NOTHING_ALIKE: Final = Apart(0.0, 100.0)
"""Of a clip that the engine refuses: 100 dB is the whole range of the measure."""
PAIRS: Final = 3
"""Of timed clips, as performance.md asks."""
SHUFFLE: Final = 8

NameOf = Callable[[Choice], str]
"""A choice as it is recorded: whatever changes its numbers is part of it."""
OnClip = Callable[[str, int, int], object]
"""What is being made, and how many of how many of its clips are there."""


class Maker(Protocol):
    """Who has an engine."""

    def sampled(self, choice: Choice, prompt: int, seed: int) -> Sampled: ...

    def apart(self, exact: Latents, made: Latents) -> Apart: ...


class Trials:
    """prompts, seeds: how many of each. folder: of this run alone. on_clip: told of each clip that is to be made."""

    def __init__(
        self, folder: Path, prompts: int, seeds: int, on_clip: OnClip, name_of: NameOf = lambda choice: choice.told
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._lines = folder, folder / "clips.jsonl"
        shuffled = random.Random(SHUFFLE).sample(range(prompts), prompts)
        self._order = [(prompt, seed) for seed in range(seeds) for prompt in shuffled]
        self._prompts, self._seeds, self._on_clip, self._name_of = prompts, seeds, on_clip, name_of
        self._exact_choice: Choice | None = None
        self._clips = {(clip.choice, clip.prompt, clip.seed): clip for clip in _read(self._lines)}

    @property
    def count(self) -> int:
        """Clips of a choice, all of them."""
        return len(self._order)

    def make_exact(self, maker: Maker, choice: Choice) -> None:
        """Every exact clip that isn't there yet, ahead of all others; one more first, which nobody counts. What they
        were made by needs no further clip to be as it is."""
        self._exact_choice = choice
        missing = [place for place in self._order if self._exact(*place) is None]
        if missing:
            self._on_clip(EXACT, self.count - len(missing), self.count)
            maker.sampled(choice, *missing[0])
        for done, place in enumerate(missing, self.count - len(missing)):
            self._on_clip(EXACT, done, self.count)
            made = maker.sampled(choice, *place)
            write_latents(self._latents(*place), made.latents, {})
            self._add(Clip(EXACT, *place, 1.0, 0.0, made.seconds, made.forwards, made.skipped_steps))

    def some(self, maker: Maker, choice: Choice, count: int, level: Level, told: str) -> Outcome:
        """The first `count` clips of `choice`, or as many as show that it can't keep the level's promise."""
        if choice != self._exact_choice:
            for done, place in enumerate(self._order[:count]):
                if self.there(choice).is_hopeless(level):
                    break
                self._make(maker, choice, place, told, done, count)
        return self.there(choice, count)

    def all(self, maker: Maker, choice: Choice, level: Level, told: str) -> Outcome:
        """All clips of `choice`, or as many as leave little hope (`Outcome.is_doubtful`)."""
        if choice != self._exact_choice:
            for done, place in enumerate(self._order):
                so_far = self.there(choice, done)
                if so_far.is_hopeless(level) or so_far.is_doubtful(level):
                    return so_far
                self._make(maker, choice, place, told, done, self.count)
        return self.there(choice)

    def there(self, choice: Choice, count: int | None = None) -> Outcome:
        """Of the clips that are there, or the first `count` of them."""
        name = EXACT if choice == self._exact_choice else self._name_of(choice)
        found = (self._clips.get((name, *place)) for place in self._order[:count])
        clips = tuple(clip for clip in found if clip is not None)
        exact = median(self._clips[(EXACT, *place)].seconds for place in self._order)
        return Outcome(choice, clips, exact, self._prompts, self._seeds)

    def timed(self, maker: Maker, outcomes: Sequence[Outcome], told: str, *, beside_exact: bool) -> list[Timed]:
        """Clips of all of them in turn, so that they have the same machine; after a round that nobody counts.

        beside_exact: with exact clips among them, by an engine that can make those too; else the ratios are to what was
        recorded of the exact clips.
        """
        exact = self._exact_choice if beside_exact else None
        choices = list(dict.fromkeys([*([exact] if exact else []), *(outcome.choice for outcome in outcomes)]))
        if len(choices) < 2:
            return [self._recorded(outcome) for outcome in outcomes]
        rounds = []
        for done, place in enumerate([self._order[0], *self._order[:PAIRS]]):
            self._on_clip(told, done, PAIRS + 1)
            rounds.append({choice: maker.sampled(choice, *place).seconds for choice in choices})
        seconds = {choice: median(each[choice] for each in rounds[1:]) for choice in choices}
        return [_timed(outcome, seconds[outcome.choice], seconds.get(exact) if exact else None) for outcome in outcomes]

    def _recorded(self, outcome: Outcome) -> Timed:
        is_exact = outcome.choice == self._exact_choice
        return Timed(outcome.exact_seconds, outcome.exact_seconds, 1.0) if is_exact else outcome.recorded

    def _make(self, maker: Maker, choice: Choice, place: tuple[int, int], told: str, done: int, count: int) -> None:
        if (self._name_of(choice), *place) not in self._clips:
            self._on_clip(told, done, count)
            self._add(self._compared(maker, choice, place))

    def _compared(self, maker: Maker, choice: Choice, place: tuple[int, int]) -> Clip:
        exact, _ = read_latents(self._latents(*place))
        name = self._name_of(choice)
        refused = Clip(name, *place, NOTHING_ALIKE.ssim, NOTHING_ALIKE.audio_db, 0.0, 0, 0)
        try:
            made = maker.sampled(choice, *place)
            apart = maker.apart(exact, made.latents)
        except (NumericalError, DegenerateOutput, BackendUnavailable, OutOfMemory):
            # A job would have failed by it.
            return refused
        except EngineDead as error:
            # This process has no device any more; the next one needn't try what took it.
            self._add(refused)
            told = f"{error.message}; the same command goes on without {choice.told}"
            raise EngineDead(told, stage=error.stage, step=error.step) from error
        return Clip(name, *place, apart.ssim, apart.audio_db, made.seconds, made.forwards, made.skipped_steps)

    def _exact(self, prompt: int, seed: int) -> Clip | None:
        there = self._latents(prompt, seed).exists()
        return self._clips.get((EXACT, prompt, seed)) if there else None

    def _latents(self, prompt: int, seed: int) -> Path:
        return self.folder / f"exact-{prompt}-{seed}.safetensors"

    def _add(self, clip: Clip) -> None:
        self._clips[(clip.choice, clip.prompt, clip.seed)] = clip
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(clip)) + "\n")


def _timed(outcome: Outcome, seconds: float, exact: float | None) -> Timed:
    exact = outcome.exact_seconds if exact is None else exact
    return Timed(exact, seconds, exact / max(seconds, 1e-9))


def _read(path: Path) -> list[Clip]:
    """What whole lines there are; the last may have been cut off. CheckpointError for any other that isn't ours."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    whole, cut = lines[:-1], lines[-1]
    if cut:
        path.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
    try:
        return [Clip(**json.loads(line)) for line in whole]
    except (TypeError, ValueError) as error:
        told = f"{path} isn't the record of a calibration ({error}); remove its folder to begin anew"
        raise CheckpointError(told) from None

"""Clips of one choice against the exact ones: made one by one, recorded as they come, given up when hopeless.

    FOLDER/clips.jsonl               a line for each clip that was made, exact or not
    FOLDER/exact-P-S.safetensors     latents of the exact clip of prompt P and seed S

A run that was stopped goes on behind the last whole line; the folder belongs to one checkpoint, device, size, schedule
and file of prompts (`calibrate` names it so). Makes nothing itself: `Maker` does. Read by `search` and `proving`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Protocol

from h3runtime.cli.calibration.arrays import Sampled, Shown
from h3runtime.core import Latents
from h3runtime.engine.latents_file import read_latents, write_latents
from h3runtime.errors import BackendUnavailable, CheckpointError, DegenerateOutput, NumericalError
from h3runtime.quality.bounds import lower_bound, upper_bound
from h3runtime.quality.distances import clip_ssim, sound_distance
from h3runtime.quality.evidence import Figure
from h3runtime.quality.levels import Choice, Level

EXACT = "exact"
NOTHING_ALIKE = 0.0, 100.0
"""SSIM and dB of a clip that the engine refuses: 100 dB is the whole range of the measure."""
TIMED = 4
SLOWER = 1.2
"""A choice is given up as slow after so many clips, if they take so many times what another takes."""
PAIRS = 5
"""Of timed clips; performance.md asks for three or more."""
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Clip:
    """choice: as `told`, or `exact`. seconds: of sampling."""

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


class Maker(Protocol):
    """Who has an engine."""

    def sampled(self, choice: Choice, prompt: int, seed: int) -> Sampled: ...

    def shown(self, latents: Latents) -> Shown: ...


OnClip = Callable[[str, int, int], object]
"""Of what, and how many of how many are there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was made of one choice. clips: all of them, or those after which nothing could save the level."""

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
        figures = self._by_prompt([clip.ssim for clip in self.clips])
        return _figure(fmean(c.ssim for c in self.clips), lower_bound(figures), min(c.ssim for c in self.clips))

    @property
    def audio_db(self) -> Figure:
        figures = self._by_prompt([clip.audio_db for clip in self.clips])
        worst = max(clip.audio_db for clip in self.clips)
        return _figure(fmean(clip.audio_db for clip in self.clips), upper_bound(figures), worst)

    @property
    def seconds(self) -> float:
        return median(clip.seconds for clip in self.clips)

    @property
    def recorded(self) -> Timed:
        """By what was recorded of clips that were made at different times."""
        return Timed(self.exact_seconds, self.seconds, self.exact_seconds / max(self.seconds, 1e-9))

    def meets(self, level: Level) -> bool:
        return self.is_complete and self.ssim.bound >= level.ssim and self.audio_db.bound <= level.audio_db

    def _by_prompt(self, figures: list[float]) -> list[list[float]]:
        return [figures[at : at + self.seeds] for at in range(0, len(figures), self.seeds)]


class Trials:
    """prompts, seeds: how many of each. folder: of this run alone. on_clip: told of each clip that is there."""

    def __init__(self, folder: Path, prompts: int, seeds: int, on_clip: OnClip) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._lines = folder, folder / "clips.jsonl"
        self._order = [(prompt, seed) for prompt in range(prompts) for seed in range(seeds)]
        self._prompts, self._seeds, self._on_clip = prompts, seeds, on_clip
        self._exact_choice: Choice | None = None
        self._clips = {(clip.choice, clip.prompt, clip.seed): clip for clip in _read(self._lines)}

    def make_exact(self, maker: Maker, choice: Choice) -> None:
        """Every exact clip that isn't there yet, ahead of all others; one more first, which nobody counts. What they
        were made by needs no further clip to be as it is."""
        self._exact_choice = choice
        missing = [place for place in self._order if self._exact(*place) is None]
        if missing:
            maker.sampled(choice, *missing[0])
        for done, place in enumerate(missing, len(self._order) - len(missing)):
            self._on_clip(EXACT, done, len(self._order))
            made = maker.sampled(choice, *place)
            write_latents(self._latents(*place), made.latents, {})
            self._add(Clip(EXACT, *place, 1.0, 0.0, made.seconds, made.forwards, made.skipped_steps))

    def outcome(self, maker: Maker, choice: Choice, seconds: float, *, level: Level) -> Outcome:
        """All clips of `choice`, or as many as show that it can't keep the level's promise, or takes longer than
        `seconds` a clip."""
        warm = False
        for done, place in enumerate(self._order):
            if choice == self._exact_choice or self._hopeless(choice, level) or self._slow(choice, seconds):
                break
            self._on_clip(f"{level.name}: {choice.told}", done, len(self._order))
            if (choice.told, *place) not in self._clips:
                if not warm:
                    _try(maker, choice, place)
                warm = True
                self._add(self._compared(maker, choice, place))
        exact = median(self._clips[(EXACT, *place)].seconds for place in self._order)
        return Outcome(choice, tuple(self._of(choice)), exact, self._prompts, self._seeds)

    def timed(self, maker: Maker, outcomes: Sequence[Outcome], *, beside_exact: bool) -> list[Timed]:
        """Clips of all of them in turn, so that they have the same machine; after a round that nobody counts.

        beside_exact: with exact clips among them, by an engine that can make those too; else the ratios are to what was
        recorded of the exact clips.
        """
        exact = self._exact_choice if beside_exact else None
        choices = list(dict.fromkeys([*([exact] if exact else []), *(outcome.choice for outcome in outcomes)]))
        if len(choices) < 2:
            return [outcome.recorded for outcome in outcomes]
        rounds = [
            {choice: self._clock(maker, choice, place, done) for choice in choices}
            for done, place in enumerate([self._order[0], *self._order[:PAIRS]])
        ][1:]
        seconds = {choice: median(each[choice] for each in rounds) for choice in choices}
        return [_timed(outcome, seconds[outcome.choice], seconds.get(exact) if exact else None) for outcome in outcomes]

    def _clock(self, maker: Maker, choice: Choice, place: tuple[int, int], done: int) -> float:
        self._on_clip(f"timing: {choice.told}", done, PAIRS + 1)
        return maker.sampled(choice, *place).seconds

    def _compared(self, maker: Maker, choice: Choice, place: tuple[int, int]) -> Clip:
        made = _try(maker, choice, place)
        if made is None:
            return Clip(choice.told, *place, *NOTHING_ALIKE, 0.0, 0, 0)
        latents, _ = read_latents(self._latents(*place))
        exact, other = maker.shown(latents), maker.shown(made.latents)
        ssim, audio = clip_ssim(exact.frames, other.frames), sound_distance(exact.samples, other.samples)
        return Clip(choice.told, *place, ssim, audio, made.seconds, made.forwards, made.skipped_steps)

    def _hopeless(self, choice: Choice, level: Level) -> bool:
        """Whether the mean can't reach the level even if every clip to come were the exact one."""
        clips, count = self._of(choice), len(self._order)
        best_ssim = (sum(clip.ssim for clip in clips) + count - len(clips)) / count
        return best_ssim < level.ssim or sum(clip.audio_db for clip in clips) / count > level.audio_db

    def _slow(self, choice: Choice, seconds: float) -> bool:
        """Told by a few clips, and by a margin, since a machine's speed isn't steady."""
        clips = self._of(choice)
        return len(clips) >= TIMED and median(clip.seconds for clip in clips) > SLOWER * seconds

    def _of(self, choice: Choice) -> list[Clip]:
        """In order, without a gap."""
        name = EXACT if choice == self._exact_choice else choice.told
        found = (self._clips.get((name, *place)) for place in self._order)
        return [clip for clip in found if clip is not None]

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


def _try(maker: Maker, choice: Choice, place: tuple[int, int]) -> Sampled | None:
    """None for a clip that the engine refuses to make such."""
    try:
        return maker.sampled(choice, *place)
    except (NumericalError, DegenerateOutput, BackendUnavailable):
        return None


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


def _figure(mean: float, bound: float, worst: float) -> Figure:
    return Figure(round(mean, DIGITS), round(bound, DIGITS), round(worst, DIGITS))

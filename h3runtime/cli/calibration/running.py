"""A calibration from engine to evidence: exact clips first, then every level of every size.

One engine does it all if what it has loaded can be exact; else the exact clips come from one of its own, which is
closed before the other is loaded, since few devices hold both. What was made of a size lies in a folder named after
all that it depends on, until its levels are settled. Imports torch; fed by `cli.calibrate`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from h3runtime import __version__
from h3runtime.cli.calibration.making import EngineMaker, Requests
from h3runtime.cli.calibration.narrowing import Narrowed
from h3runtime.cli.calibration.outcome import Outcome, Timed
from h3runtime.cli.calibration.outlook import Outlook, View
from h3runtime.cli.calibration.prompts import Prompts
from h3runtime.cli.calibration.proving import evidence_of
from h3runtime.cli.calibration.search import Candidates, fastest
from h3runtime.cli.calibration.size import Size
from h3runtime.cli.calibration.trials import Trials
from h3runtime.core import EngineFacts, SamplerSettings, ShouldStop
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import BackendUnavailable, Offence
from h3runtime.jobs.lock import unusable
from h3runtime.quality.evidence import KIND, Notes, weights_of, write_evidence
from h3runtime.quality.levels import Choice, Level, exact_choice
from h3runtime.quality.shelf import FOLDER
from h3runtime.settings import Settings

WIDE = Narrowed()
UNFINISHED, LOCK = "unfinished", "lock"
"""Below the folder of evidence: what a run has so far, and the file that it holds while it runs."""

Load = Callable[[Settings, str], ResidentEngine]
"""Settings and a partition -> an engine that has loaded."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure."""

    prompts: Prompts
    sizes: tuple[Size, ...]
    sampling: SamplerSettings
    levels: tuple[Level, ...]
    seeds: int
    narrowed: Narrowed = WIDE


@dataclass(frozen=True, slots=True)
class Calibration:
    """settings: those of the server that the evidence is for. show: told of each clip that is to be made. on_row: of
    each level that is settled, as soon as it is."""

    asked: Asked
    settings: Settings
    load: Load
    should_stop: ShouldStop
    show: Callable[[View], object]
    on_row: Callable[[dict[str, Any]], object] = lambda _: None

    def run(self) -> list[dict[str, Any]]:
        """A row for each size and level: its evidence and the file's name, or null where nothing keeps the promise.

        InvalidRequest for prompts or sizes that no request may have; SettingsError while another calibration runs; the
        errors of loading; JobCancelled.
        """
        folder = self.settings.data_dir / FOLDER / UNFINISHED
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder), TemporaryDirectory(prefix=".scratch-", dir=folder) as scratch:
            requests = [Requests(self.asked.prompts, size, self.asked.sampling, Path(scratch)) for size in self._sizes]
            (partition,) = {each.partition(self.settings) for each in requests}
            with self._engine(partition, requests, folder) as session:
                return [row for index in range(len(requests)) for row in session.rows(index)]

    @property
    def _sizes(self) -> Sequence[Size]:
        return tuple(dict.fromkeys(self.asked.sizes))

    @contextmanager
    def _engine(self, partition: str, requests: Sequence[Requests], folder: Path) -> Iterator[_Session]:
        """With the engine of the candidates, and trials that have the exact clips."""
        engine = self.load(self.settings, partition)
        facts, plain = engine.facts(), engine
        self.asked.narrowed.judge(facts)
        exact = exact_choice(facts)
        if exact is None:
            engine.close()
            plain = self.load(self.settings.model_copy(update={"linear": "auto"}), partition)
            exact = exact_choice(plain.facts())
        if exact is None:
            told = "nothing exact can run on this device to compare with"
            raise BackendUnavailable(told, [Offence("linear", told)])
        outlook = Outlook(self._planned(facts, len(requests), exact), self.show)
        trials = [self._trials(each, plain.facts(), partition, exact, folder, outlook) for each in requests]
        for each, trial in zip(requests, trials, strict=True):
            outlook.begin_part()
            trial.make_exact(EngineMaker(plain, each, self.should_stop), exact)
        if plain is not engine:
            plain.close()
            engine = self.load(self.settings, partition)
        try:
            yield _Session(self, engine, partition, exact, tuple(zip(requests, trials, strict=True)), outlook)
        finally:
            engine.close()

    def _planned(self, facts: EngineFacts, sizes: int, exact: Choice) -> list[int]:
        """Clips: the exact ones of each size, then each level's."""
        whole = len(self.asked.prompts.requests) * self.asked.seeds
        candidates = (self.asked.narrowed.candidates(level, facts, exact) for level in self.asked.levels)
        return [whole] * sizes + [each.likely_clips(whole) for each in candidates] * sizes

    def _trials(
        self, requests: Requests, facts: EngineFacts, partition: str, exact: Choice, folder: Path, outlook: Outlook
    ) -> Trials:
        sampling = asdict(requests.sampling) | {"seed": 0}
        exactly = [asdict(exact), asdict(Notes.of(exact, facts))]
        depends = [KIND, weights_of(facts, partition), facts.device, __version__, sampling, exactly]
        digest = hashlib.sha256(json.dumps([*depends, self._prompts]).encode()).hexdigest()[:16]
        count = len(self.asked.prompts.requests)
        name_of = partial(_recorded, facts)
        return Trials(folder / f"{requests.size.name}-{digest}", count, self.asked.seeds, outlook, name_of)

    @property
    def _prompts(self) -> str:
        return self.asked.prompts.sha256


@dataclass(frozen=True, slots=True)
class _Session:
    """With an engine. parts: requests and trials of each size."""

    calibration: Calibration
    engine: ResidentEngine
    partition: str
    exact: Choice
    parts: tuple[tuple[Requests, Trials], ...]
    outlook: Outlook

    def rows(self, index: int) -> Iterator[dict[str, Any]]:
        """Of one size. Its records go when its levels are settled."""
        requests, trials = self.parts[index]
        kept: list[Choice] = []
        for level in self.calibration.asked.levels:
            self.outlook.begin_part()
            found = self._found(level, requests, trials, kept)
            kept += [found[0].choice] if found else []
            row = self._row(level, found, requests.size)
            self.calibration.on_row(row)
            yield row
        shutil.rmtree(trials.folder, ignore_errors=True)

    def _found(
        self, level: Level, requests: Requests, trials: Trials, kept: list[Choice]
    ) -> tuple[Outcome, Timed] | None:
        maker = EngineMaker(self.engine, requests, self.calibration.should_stop)
        candidates = self.calibration.asked.narrowed.candidates(level, self.engine.facts(), self.exact)
        return fastest(level, candidates, _Attempts(trials, maker, candidates), kept)

    def _row(self, level: Level, found: tuple[Outcome, Timed] | None, size: Size) -> dict[str, Any]:
        row: dict[str, Any] = {"level": level.name, "size": size.name, "evidence": None, "file": None}
        if found is None:
            return row
        asked, facts = self.calibration.asked, self.engine.facts()
        outcome, timed = found
        evidence = evidence_of(
            level, outcome, timed, facts, self.partition, size, asked.sampling, asked.prompts, self.exact
        )
        path = write_evidence(self.calibration.settings.data_dir / FOLDER, evidence)
        return row | {"evidence": evidence.told, "file": str(path)}


@dataclass(frozen=True, slots=True)
class _Attempts:
    """`search.Attempts`: trials with the engine that makes them."""

    trials: Trials
    maker: EngineMaker
    candidates: Candidates

    def some(self, choice: Choice, count: int, level: Level, told: str) -> Outcome:
        return self.trials.some(self.maker, choice, count, level, told)

    def all(self, choice: Choice, level: Level, told: str) -> Outcome:
        return self.trials.all(self.maker, choice, level, told)

    def timed(self, outcomes: Sequence[Outcome], told: str) -> Sequence[Timed]:
        beside_exact = self.candidates.exact is not None
        return self.trials.timed(self.maker, outcomes, told, beside_exact=beside_exact)


def _recorded(facts: EngineFacts, choice: Choice) -> str:
    notes = Notes.of(choice, facts)
    return f"{choice.told} {notes.linear} {notes.attention}".strip()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two runs would write into each other's records. SettingsError while another one is there."""
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise unusable(folder, "another calibration uses it") from error
        yield

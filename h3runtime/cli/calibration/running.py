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
from h3runtime.cli.calibration.prompts import Prompts
from h3runtime.cli.calibration.proving import evidence_of
from h3runtime.cli.calibration.search import fastest
from h3runtime.cli.calibration.size import Size
from h3runtime.cli.calibration.trials import OnClip, Outcome, Timed, Trials
from h3runtime.core import EngineFacts, SamplerSettings, ShouldStop
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import BackendUnavailable, Offence
from h3runtime.jobs.lock import unusable
from h3runtime.quality.evidence import weights_of, write_evidence
from h3runtime.quality.levels import Choice, Level, bases, exact_choice
from h3runtime.quality.shelf import FOLDER
from h3runtime.settings import Settings

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


@dataclass(frozen=True, slots=True)
class Calibration:
    """settings: those of the server that the evidence is for. on_clip: see `trials`."""

    asked: Asked
    settings: Settings
    load: Load
    should_stop: ShouldStop
    on_clip: OnClip

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
            with self._engine(partition, requests, folder) as (engine, exact, trials):
                sessions = zip(requests, trials, strict=True)
                return [row for each in sessions for row in self._size(*each, engine, partition, exact)]

    @property
    def _sizes(self) -> Sequence[Size]:
        return tuple(dict.fromkeys(self.asked.sizes))

    @contextmanager
    def _engine(
        self, partition: str, requests: Sequence[Requests], folder: Path
    ) -> Iterator[tuple[ResidentEngine, Choice, list[Trials]]]:
        """The engine of the candidates, what the exact clips were made by, and the trials, which have them."""
        engine = self.load(self.settings, partition)
        exact = exact_choice(engine.facts())
        plain = engine
        if exact is None:
            engine.close()
            plain = self.load(self.settings.model_copy(update={"linear": "auto"}), partition)
            exact = exact_choice(plain.facts())
        if exact is None:
            told = "nothing exact can run on this device to compare with"
            raise BackendUnavailable(told, [Offence("linear", told)])
        trials = [self._trials(each, plain.facts(), partition, exact, folder) for each in requests]
        for each, trial in zip(requests, trials, strict=True):
            trial.make_exact(EngineMaker(plain, each, self.should_stop), exact)
        if plain is not engine:
            plain.close()
            engine = self.load(self.settings, partition)
        try:
            yield engine, exact, trials
        finally:
            engine.close()

    def _trials(self, requests: Requests, facts: EngineFacts, partition: str, exact: Choice, folder: Path) -> Trials:
        sampling = asdict(requests.sampling) | {"seed": 0}
        depends = [weights_of(facts, partition), facts.device, __version__, sampling, asdict(exact), self._prompts]
        digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:16]
        count = len(self.asked.prompts.requests)
        return Trials(folder / f"{requests.size.name}-{digest}", count, self.asked.seeds, self.on_clip)

    @property
    def _prompts(self) -> str:
        return self.asked.prompts.sha256

    def _size(
        self, requests: Requests, trials: Trials, engine: ResidentEngine, partition: str, exact: Choice
    ) -> Iterator[dict[str, Any]]:
        maker, facts = EngineMaker(engine, requests, self.should_stop), engine.facts()
        both = exact.linear in facts.linear.available and exact.attention in facts.attention.available
        clock = partial(trials.timed, maker, beside_exact=both)
        for level in self.asked.levels:
            attempt = partial(trials.outcome, maker, level=level)
            found = fastest(level, bases(level, facts), attempt, clock)
            yield self._row(level, found, facts, partition, requests.size, exact)
        shutil.rmtree(trials.folder, ignore_errors=True)

    def _row(
        self,
        level: Level,
        found: tuple[Outcome, Timed] | None,
        facts: EngineFacts,
        partition: str,
        size: Size,
        exact: Choice,
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"level": level.name, "size": size.name, "evidence": None, "file": None}
        if found is None:
            return row
        asked = self.asked
        evidence = evidence_of(level, *found, facts, partition, size, asked.sampling, asked.prompts, exact)
        path = write_evidence(self.settings.data_dir / FOLDER, evidence)
        return row | {"evidence": evidence.told, "file": str(path)}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two runs would write into each other's records. SettingsError while another one is there."""
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise unusable(folder, "another calibration uses it") from error
        yield

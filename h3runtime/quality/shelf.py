"""All evidence that a process has: the package's own and what `calibrate` left in the data folder.

A file that can't be read is told by name and taken for nothing; one that counts for other weights, another device or
another version waits there for its own. Files are read again once their folder has changed, and only when a request
asks for a level: probes get what was read last. Fed by `api` and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from h3runtime import __version__
from h3runtime.core import EngineFacts
from h3runtime.errors import CheckpointError
from h3runtime.quality.bucket import Bucket, Sampling
from h3runtime.quality.evidence import LEAST, Evidence, Least, Notes, read_evidence, weights_of

FOLDER: Final = "quality"
"""Below the data folder."""
PACKAGED: Final = Path(__file__).parent / "packaged"


@dataclass(frozen=True, slots=True)
class Use:
    """What of a request evidence must speak for."""

    partition: str
    bucket: Bucket
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Held:
    """What was there at one moment. own: of the data folder. packed: of the package. faults: of files that tell
    nothing."""

    own: tuple[Evidence, ...] = ()
    packed: tuple[Evidence, ...] = ()
    faults: tuple[str, ...] = ()

    def of(self, level: str, facts: EngineFacts) -> tuple[Evidence, ...]:
        """Of what is loaded here; own measurements before the package's."""
        mine = {partition: weights_of(facts, partition) for partition in _partitions(facts)}
        return tuple(
            evidence
            for evidence in (*self.own, *self.packed)
            if evidence.level == level
            and evidence.weights == mine.get(evidence.partition)
            and evidence.device == facts.device
            and evidence.version == __version__
        )

    def find(self, level: str, facts: EngineFacts, use: Use | None) -> tuple[Evidence | None, str]:
        """The fastest choice that can run on what is loaded, and was measured for such a request; else why none.

        use: None where the request can't be told yet; then only what holds for all of them is.
        """
        told = self.of(level, facts)
        if not told:
            return None, f"there is no evidence of {level!r} for the loaded checkpoint on {facts.device}"
        if use is None:
            return None, ""
        fitting = [e for e in told if (e.partition, e.bucket, e.sampling) == (use.partition, use.bucket, use.sampling)]
        if not fitting:
            asked = f"{use.bucket.told} on {use.partition} with this sampler, scheduler and shifts"
            return None, f"there is no evidence of {level!r} for {asked}"
        usable = [evidence for evidence in fitting if not why_not(evidence, facts)]
        if not usable:
            return None, f"the evidence of {level!r} is for another choice: {why_not(fitting[0], facts)}"
        # What was measured on this machine counts more than what the package's machine said.
        own = [evidence for evidence in usable if evidence in self.own]
        return max(own or usable, key=lambda evidence: evidence.time_ratio), ""


class Shelf:
    """data_dir: the data folder, which need not be there. least: for tests of `calibrate` itself."""

    def __init__(self, data_dir: Path, packaged: Path = PACKAGED, least: Least = LEAST) -> None:
        self.folder, self._least = data_dir / FOLDER, least
        packed, faults = _read(packaged, least)
        assert not faults, faults
        self._seen = _changed_at(self.folder)
        self.held = Held(packed=packed)
        self._read()

    def now(self) -> Held:
        """After a look at whether the data folder has changed."""
        seen = _changed_at(self.folder)
        if seen != self._seen:
            self._seen = seen
            self._read()
        return self.held

    def _read(self) -> None:
        own, faults = _read(self.folder, self._least)
        self.held = Held(own, self.held.packed, faults)


def why_not(evidence: Evidence, facts: EngineFacts) -> str:
    """Why the loaded engine can't do what was measured; "" if it can."""
    choice = evidence.choice
    for family, name, known in (
        ("linear", choice.linear, facts.linear),
        ("attention", choice.attention, facts.attention),
    ):
        if name not in known.available:
            return f"{family} {name}: {known.unavailable.get(name, 'is not known')}"
    measured, now = evidence.choice_notes, Notes.of(choice, facts)
    for family, then, today in (
        ("linear", measured.linear, now.linear),
        ("attention", measured.attention, now.attention),
    ):
        if then != today:
            return f"{family} {getattr(choice, family)} is set to {today!r}, and was measured with {then!r}"
    return ""


def _partitions(facts: EngineFacts) -> Iterable[str]:
    return (part.partition for part in facts.components if part.partition is not None)


def _read(folder: Path, least: Least) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    found, faults = [], []
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            found.append(read_evidence(path, least))
        except CheckpointError as error:
            faults.append(error.message)
    return tuple(found), tuple(faults)


def _changed_at(folder: Path) -> int | None:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None

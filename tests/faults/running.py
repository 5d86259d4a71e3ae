"""Families of cases, run one after the other in one place, each judged; a case that fails gets the next a new place."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.case import Case
from tests.faults.place import Findings, NotPlayable, Place

END = "the_end"
TIMES = 2
"""How often the tests play each family."""


@dataclass(frozen=True)
class Outcome:
    """How one run of one case went. error: what it met itself. skipped: this machine can't play it."""

    case: str
    seconds: float
    findings: Findings = field(default_factory=Findings)
    error: str = ""
    skipped: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.findings or self.error)


def run_family(family: Mapping[str, Case], folder: Path) -> Iterator[Outcome]:
    """The outcome of each case, and of the end of their server."""
    place: Place | None = None
    for number, (name, case) in enumerate(family.items()):
        place = place or Place(folder / str(number))
        outcome = _run(name, case, place)
        yield outcome
        if outcome.failed or outcome.skipped:
            place.close()
            place = None
    if place is not None:
        yield _run(END, None, place)
        place.close()


def require_sound(family: Mapping[str, Case], folder: Path) -> None:
    """Nothing is lost, nothing is doubled, nothing is left."""
    failed = [f"{o.case}: {o.findings}\n{o.error}" for o in run_family(family, folder) if o.failed]
    assert not failed, "\n".join(failed)


def _run(name: str, case: Case | None, place: Place) -> Outcome:
    began = time.monotonic()
    try:
        if case is not None:
            case(place)
        findings = place.end() if case is None else place.settle()
        return Outcome(name, time.monotonic() - began, findings)
    except NotPlayable as error:
        return Outcome(name, time.monotonic() - began, skipped=str(error))
    except Exception:
        return Outcome(name, time.monotonic() - began, error=traceback.format_exc())

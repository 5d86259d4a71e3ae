"""How long a request will take, from what finished ones took on this machine.

A request's `Work` counts operations by stage; the same work takes the same time. For each stage the newest finished
jobs of the same checkpoint and device are fitted with

    seconds = a + b * work,    a, b >= 0,    minimising the sum of ((a + b * work - seconds) / seconds)^2

so that a short clip counts as much as a long one. One amount of work alone can't tell a from b: then a = 0. While jobs
of fewer than `ENOUGH` amounts of work are known, the engine's own warm-up clips are part of the history, those of an
amount that no job has had. Jobs that were the first after a start are left out: they pay for what later ones find done.
`queue` teaches and asks; kept in the table `timings`, so that it outlives the rows of jobs.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from h3runtime.core import EngineFacts, Work
from h3runtime.errors import NotReady
from h3runtime.jobs.job import Job, Status
from h3runtime.jobs.store import JobStore

NEWEST = 200
"""Jobs that are fitted: drivers and loads change."""
ENOUGH = 3
"""Amounts of work whose jobs tell a from b without the warm-up clips."""
JOB_WEIGHT = 10
"""Warm-up clips that a job counts for: they are much smaller, and so mostly overhead."""
SHORTEST = 1e-3
"""Seconds under which a stage counts as so long: the clock's and the pipe's own noise."""

Predict = Callable[[Work | None], Mapping[str, float] | None]


@dataclass(frozen=True, slots=True)
class Fit:
    """seconds = a + b * work."""

    a: float
    b: float

    def seconds(self, work: float) -> float:
        return self.a + self.b * work


Fits = Mapping[str, Fit]
"""By stage."""


class History:
    """Of one store. Safe to use from any thread; nothing blocks on a writer."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], deque[Work]] = {}
        # Asked for each waiting job every second, so fitted once for each job that has finished.
        self._fits: dict[tuple[str, str], Fits] = {}

    def learn(self, work: Work, checkpoint: str, device: str) -> None:
        """One more finished job. Never fails: predictions get by without it."""
        with self._lock:
            self._of(checkpoint, device).append(work)
            self._fits.pop((checkpoint, device), None)
        # Known until the next start in any case.
        with suppress(NotReady), self._store.writing(durable=False) as connection:
            _insert(connection, work, checkpoint, device)

    def predict(self, work: Work, facts: EngineFacts) -> dict[str, float] | None:
        """Seconds by stage, and `total`; None where a stage of `work` has no history."""
        name = (facts.checkpoint, facts.device)
        with self._lock:
            if name not in self._fits:
                self._fits[name] = fits(_with_warm_up([*self._of(*name)], facts.warm_up))
            return predict(work, self._fits[name])

    def _of(self, checkpoint: str, device: str) -> deque[Work]:
        name = (checkpoint, device)
        if name not in self._known:
            try:
                with self._store.reading() as connection:
                    self._known[name] = deque(_newest(connection, *name), maxlen=NEWEST)
            except NotReady:
                return deque(maxlen=NEWEST)
        return self._known[name]


def fits(known: Sequence[Work]) -> Fits:
    """Of every stage that any of them had."""
    stages = {stage for past in known for stage in past.stages if stage in past.seconds}
    return {
        stage: fit([(past.stages[stage], past.seconds[stage]) for past in known if _has(past, stage)])
        for stage in stages
    }


def predict(work: Work, known: Fits) -> dict[str, float] | None:
    """As `History.predict`."""
    if not work.stages or not work.stages.keys() <= known.keys():
        return None
    found = {stage: known[stage].seconds(amount) for stage, amount in work.stages.items()}
    return found | {"total": sum(found.values())}


def fit(pairs: Sequence[tuple[float, float]]) -> Fit:
    """The best a and b for pairs of work and seconds, of which there is at least one."""
    points = [(amount, max(seconds, SHORTEST)) for amount, seconds in pairs]
    # Divided by its seconds each point is u = 1/t and v = w/t, and a*u + b*v should be 1.
    u = [1 / t for _, t in points]
    v = [w / t for w, t in points]
    uu, uv, vv = _dot(u, u), _dot(u, v), _dot(v, v)
    determinant = uu * vv - uv * uv
    # By Cauchy and Schwarz it is never negative, and is 0 for one amount of work.
    if determinant > 1e-9 * uu * vv:
        a = (sum(u) * vv - sum(v) * uv) / determinant
        b = (sum(v) * uu - sum(u) * uv) / determinant
        if a >= 0 and b >= 0:
            return Fit(a, b)
        if b < 0:
            return Fit(sum(u) / uu, 0.0)
    return Fit(0.0, sum(v) / vv) if vv > 0 else Fit(sum(u) / uu, 0.0)


def left_of(jobs: Iterable[Job], asked_of: Predict) -> float | None:
    """Seconds that all of them take from now on, one after the other; None where that can't be told."""
    total = 0.0
    for job in jobs:
        if job.status is Status.RUNNING and job.progress.eta_seconds is not None:
            total += job.progress.eta_seconds
        elif (seconds := asked_of(job.work)) is not None:
            total += seconds["total"] * (1.0 - job.progress.fraction)
        else:
            return None
    return total


def learned(work: Work | None, timings: Mapping[str, float]) -> Work | None:
    """What a finished job teaches; None if nothing is known of its work."""
    if work is None:
        return None
    seconds = {stage: timings[stage] for stage in work.stages if stage in timings}
    return Work(work.stages, seconds) if seconds else None


def _with_warm_up(known: Sequence[Work], warm_up: Sequence[Work]) -> Sequence[Work]:
    met = {_amounts(past) for past in known}
    if len(met) >= ENOUGH:
        return known
    return [*(past for past in warm_up if _amounts(past) not in met), *JOB_WEIGHT * list(known)]


def _amounts(past: Work) -> frozenset[tuple[str, float]]:
    return frozenset(past.stages.items())


def _has(past: Work, stage: str) -> bool:
    return stage in past.stages and stage in past.seconds


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(one, other, strict=True))


def _insert(connection: sqlite3.Connection, work: Work, checkpoint: str, device: str) -> None:
    values = (checkpoint, device, json.dumps(asdict(work)))
    connection.execute("INSERT INTO timings (checkpoint, device, work) VALUES (?, ?, ?)", values)
    connection.execute(
        "DELETE FROM timings WHERE checkpoint = ?1 AND device = ?2 AND seq <= "
        "(SELECT seq FROM timings WHERE checkpoint = ?1 AND device = ?2 ORDER BY seq DESC LIMIT 1 OFFSET ?3)",
        (checkpoint, device, NEWEST),
    )


def _newest(connection: sqlite3.Connection, checkpoint: str, device: str) -> list[Work]:
    """Oldest first."""
    query = "SELECT work FROM timings WHERE checkpoint = ? AND device = ? ORDER BY seq DESC LIMIT ?"
    rows = connection.execute(query, (checkpoint, device, NEWEST)).fetchall()
    return [Work(**json.loads(row[0])) for row in reversed(rows)]

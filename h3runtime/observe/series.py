"""Counters, gauges and histograms, and their text: Prometheus exposition format 0.0.4.

Does: keep numbers by label values, from any thread, and write them out. Does not: know what they mean (`metrics` does),
or forget a series that was counted once.

The text is made in the loop that answers every request, while collectors scrape, so it has to cost little: a line's
head is written when its series is made, and a scrape only puts numbers behind the heads. The usual client library
takes 20 us a line, which for a server that has seen all its routes is 20 ms of nobody being answered; this takes one.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Registry:
    """All families of one server, in the order in which they were made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._families: list[Family] = []

    def add(self, family: Family) -> None:
        with self.lock:
            assert family.name not in [other.name for other in self._families], family.name
            self._families.append(family)

    def text(self) -> bytes:
        with self.lock:
            families = list(self._families)
        return "".join(line for family in families for line in family.lines()).encode()


class Family:
    """One name, its help and its label names; a kind adds what its series hold. Values come in the labels' order."""

    kind = "untyped"

    def __init__(self, registry: Registry, name: str, help_text: str, *labels: str) -> None:
        self.name = name
        self._labels = labels
        self._head = f"# HELP {name} {help_text}\n# TYPE {name} {self.kind}\n"
        self._lock = registry.lock
        registry.add(self)

    def lines(self) -> Iterator[str]:
        yield self._head
        with self._lock:
            samples = list(self._samples())
        yield from samples

    def _samples(self) -> Iterator[str]:
        raise NotImplementedError

    def _series(self, suffix: str, values: tuple[str, ...], **more: str) -> str:
        """All of a line but its number."""
        assert len(values) == len(self._labels), (self.name, values)
        pairs = [*zip(self._labels, values, strict=True), *more.items()]
        told = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
        return f"{self.name}{suffix}{{{told}}} " if told else f"{self.name}{suffix} "


class Counter(Family):
    """Only rises."""

    kind = "counter"

    def __init__(self, registry: Registry, name: str, help_text: str, *labels: str) -> None:
        super().__init__(registry, name, help_text, *labels)
        self._values: dict[tuple[str, ...], float] = {}
        self._heads: dict[tuple[str, ...], str] = {}

    def add(self, *labels: str, by: float = 1.0) -> None:
        with self._lock:
            if labels not in self._values:
                self._heads[labels] = self._series("", labels)
            self._values[labels] = self._values.get(labels, 0.0) + by

    def _samples(self) -> Iterator[str]:
        return (f"{self._heads[labels]}{_number(value)}\n" for labels, value in self._values.items())


class Gauge(Counter):
    """As it is now; or as `read` says at each scrape, left out when it can't tell."""

    kind = "gauge"

    def __init__(
        self, registry: Registry, name: str, help_text: str, *labels: str, read: Callable[[], float] | None = None
    ) -> None:
        super().__init__(registry, name, help_text, *labels)
        self._read = read

    def set(self, value: float, *labels: str) -> None:
        with self._lock:
            self._heads.setdefault(labels, self._series("", labels))
            self._values[labels] = value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def lines(self) -> Iterator[str]:
        # Asked outside the lock: what it reads may have locks of its own.
        if self._read is not None:
            try:
                self.set(self._read())
            except OSError:
                self.clear()
        return super().lines()


class Histogram(Family):
    """Counts of what is no more than each bound, and the sum. bounds: ascending."""

    kind = "histogram"

    def __init__(self, registry: Registry, name: str, help_text: str, *labels: str, bounds: tuple[float, ...]) -> None:
        super().__init__(registry, name, help_text, *labels)
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        self._heads: dict[tuple[str, ...], list[str]] = {}

    def observe(self, value: float, *labels: str) -> None:
        with self._lock:
            if labels not in self._counts:
                self._heads[labels] = [
                    self._series("_bucket", labels, le=_number(b)) for b in (*self._bounds, math.inf)
                ]
                self._heads[labels] += [self._series("_sum", labels), self._series("_count", labels)]
                self._counts[labels] = [0] * (len(self._bounds) + 1)
                self._sums[labels] = 0.0
            self._counts[labels][bisect_left(self._bounds, value)] += 1
            self._sums[labels] += value

    def _samples(self) -> Iterator[str]:
        for labels, counts in self._counts.items():
            heads, below = self._heads[labels], 0
            for head, count in zip(heads, counts, strict=False):
                below += count
                yield f"{head}{below}\n"
            yield f"{heads[-2]}{_number(self._sums[labels])}\n"
            yield f"{heads[-1]}{below}\n"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value)) if value == value else "NaN"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

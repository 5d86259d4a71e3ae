"""The line of waiting jobs: higher priority first, and within one the order of arrival. Not locked; `queue` is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from h3runtime.jobs.job import Job


class Line:
    """Ids of jobs that wait."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._places

    def __iter__(self) -> Iterator[str]:
        """In the order in which they would be taken."""
        return iter(sorted(self._places, key=self._places.__getitem__))

    def add(self, job: Job) -> None:
        self._places[job.id] = (-job.order.priority, next(self._arrivals))

    def remove(self, job_id: str) -> None:
        del self._places[job_id]

    def pop(self) -> str:
        """The next one. There must be one."""
        job_id = min(self._places, key=self._places.__getitem__)
        del self._places[job_id]
        return job_id

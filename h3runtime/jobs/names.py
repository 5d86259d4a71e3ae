"""Which output names are taken: by a file, by a job that hasn't ended, or by a request that is being admitted.

`queue` asks before it admits. That a name was free then is checked once more when the clip gets it (`publish`): anybody
may have put a file there meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from h3runtime.errors import JobNotFound, Offence, OutputExists
from h3runtime.jobs import output_rows
from h3runtime.jobs.outputs import outputs_of
from h3runtime.jobs.table import JobTable


class OutputNames:
    """Of one server. Safe to use from any thread."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._promised: set[Path] = set()

    @contextmanager
    def promise(self, outputs: frozenset[Path], overwrite: bool, owner: str | None = None) -> Iterator[None]:
        """Hold them until the block is left, by when a job holds them. `OutputExists`. owner: whose clips may be
        overwritten beside files that no job has; None: anybody's."""
        with self._lock:
            self._check(outputs, overwrite)
            if overwrite and owner is not None:
                self._check_owner(outputs, owner)
            self._promised |= outputs
        try:
            yield
        finally:
            with self._lock:
                self._promised -= outputs

    def _check(self, outputs: frozenset[Path], overwrite: bool) -> None:
        held = self._promised.union(*(outputs_of(job.spec) for job in self._table.live()))
        for output in sorted(outputs):
            if output in held:
                raise _taken(output, "another job that hasn't ended holds this name", "a name that no live job holds")
            if not overwrite and os.path.lexists(output):
                raise _taken(output, "a file of this name exists", "a new name, or overwrite: true")

    def _check_owner(self, outputs: frozenset[Path], owner: str) -> None:
        with self._table.store.reading() as connection:
            found = [(output, output_rows.owner_of_clip(connection, output)) for output in sorted(outputs)]
        for output, job_id in found:
            if job_id is None:
                continue
            with suppress(JobNotFound):
                if self._table.get(job_id).owner != owner:
                    raise _taken(output, "a file of this name exists and is not yours", "a new name")


def _taken(output: Path, why: str, legal: str) -> OutputExists:
    return OutputExists(f"output {output.name!r}: {why}", [Offence("output", why, legal)])

"""A job as its server tells it. `client` makes it; the whole answer is in `facts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h3runtime.client.events import ENDED
from h3runtime.core import Progress


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """facts: the answer's fields (service-contract, "The answer")."""

    facts: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.facts["id"])

    @property
    def status(self) -> str:
        return str(self.facts["status"])

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def outputs(self) -> list[Mapping[str, Any]]:
        """One for each clip: `index, seed, output, sha256, bytes, url`."""
        return list(self.facts.get("outputs", ()))

    @property
    def progress(self) -> Progress:
        return progress_of(self.facts.get("progress", {}))

    @property
    def why_not(self) -> str | None:
        """Why there is no clip, in one line; None while there may be one."""
        error = self.facts.get("error") or {}
        if self.status == "failed":
            at = f" in {error['stage']}" if error.get("stage") else ""
            return f"job {self.id} failed{at}: {error.get('code')}: {error.get('message')}"
        return f"job {self.id} is {self.status}" if self.has_ended and self.status != "succeeded" else None


def progress_of(told: Mapping[str, Any]) -> Progress:
    """From the data of a `progress` event or the part of that name of a job."""
    return Progress(
        str(told.get("stage", "queued")),
        int(told.get("step") or 0),
        int(told.get("steps") or 0),
        float(told.get("fraction") or 0.0),
        told.get("eta_seconds"),
    )

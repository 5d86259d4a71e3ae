"""The cases: each makes something go wrong on purpose and says what must come of the jobs that were there.

    servers    killed at any moment, or told to go
    engines    killed; jobs cancelled and deleted; the real one
    clients    that go, stall or can't be reached
    encoders   that can't be relied on
    disks      that fill up, and the record of jobs

A case gets a `Place` and leaves its servers as they are; `Place.settle` goes through the books afterwards. What a case
checks itself is what only it knows: an error's code, who was answered what, how soon.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.case import Case
from tests.faults.cases import clients, disks, encoders, engines, servers


def families() -> Mapping[str, Mapping[str, Case]]:
    """All of them by name."""
    found: dict[str, Mapping[str, Case]] = {}
    for module in (servers, engines, clients, encoders, disks):
        found |= module.families()
    return found

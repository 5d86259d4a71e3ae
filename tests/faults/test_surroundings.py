"""What is around a server: its clients, its encoder, its disks and the record of its jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cases import clients, disks, encoders
from tests.faults.running import TIMES, require_sound

pytestmark = pytest.mark.timeout(1200)

FAMILIES = {**clients.families(), **disks.families(), **encoders.families()}


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("name", FAMILIES)
def test_surroundings(name: str, time: int, tmp_path: Path) -> None:  # noqa: ARG001  # each run is a test of its own
    require_sound(FAMILIES[name], tmp_path / name)

"""Engines that are killed, jobs that are stopped, and the real engine in the middle of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cases import engines
from tests.faults.running import TIMES, require_sound

pytestmark = pytest.mark.timeout(1200)

FAMILIES = engines.families()


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("name", FAMILIES)
def test_engines(name: str, time: int, tmp_path: Path) -> None:  # noqa: ARG001  # each run is a test of its own
    require_sound(FAMILIES[name], tmp_path / name)

"""Servers that are killed or told to go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cases import servers
from tests.faults.running import TIMES, require_sound

pytestmark = pytest.mark.timeout(1200)

FAMILIES = servers.families()


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("name", FAMILIES)
def test_servers(name: str, time: int, tmp_path: Path) -> None:  # noqa: ARG001  # each run is a test of its own
    require_sound(FAMILIES[name], tmp_path / name)

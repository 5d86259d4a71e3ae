"""Every fault twice: nothing is lost, nothing is doubled, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cases import families
from tests.faults.running import run_family

TIMES = 2


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("name", list(families()))
def test_faults(name: str, time: int, tmp_path: Path) -> None:  # noqa: ARG001  # each run is a test of its own
    outcomes = list(run_family(families()[name], tmp_path / name))
    failed = [f"{o.case}: {o.findings}\n{o.error}" for o in outcomes if o.failed]
    assert not failed, "\n".join(failed)

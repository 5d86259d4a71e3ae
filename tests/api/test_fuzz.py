"""A short run of `benchmarks.fuzz`: every check and stateful links. README has the command of the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzz import fuzz
from tests.api.server import running


def test_a_fuzzer_finds_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """On a server of its own: the fuzzer sends again what it finds in answers, and other tests' jobs say `hold`."""
    with running(tmp_path / "data") as server:
        code = fuzz(server.url, tmp_path, examples=8, seed=1, more=["--phases", "fuzzing,stateful"])
    assert code == 0, capfd.readouterr().out

"""What active adapters cost: the whole script on a small network."""

import json
from pathlib import Path

import pytest

from benchmarks.adapters import main


def test_every_figure_is_there_and_nothing_was_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "adapters.json"
    small = ["--sizes", "small", "--blocks", "1", "--rank", "4", "--rounds", "1", "--workload", "smoke-320x192-22f"]
    assert main([*small, "--lanes", "exact", "--device", "cpu", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert set(found["exact"]["ms"]) == {"0", "1", "2"} and all(ms > 0 for ms in found["exact"]["ms"].values())
    assert found["exact"]["stays"] is True and found["exact"]["rows"] == 594
    taking = found["taking"]
    assert taking["file_bytes"] > 10_000 and 0 < taking["again_seconds"] < taking["take_seconds"]
    told = capsys.readouterr().out
    assert "stays: yes" in told and "2 more" in told

"""Whole requests through HTTP, with an engine that has no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.request import main

TINY = (
    "--width",
    "64",
    "--height",
    "64",
    "--frames",
    "22",
    "--steps",
    "2",
    "--engine",
    "tests.fake_engine:create_for_serve",
)


def test_cold_first_and_warm_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert main([*TINY, "--runs", "2", "--output", str(out), "--prompt-cache-bytes", "0"]) == 0
    report = json.loads(out.read_text())
    assert report["cold_seconds"] > 0
    assert {name: len(made) for name, made in report["clips"].items()} == {"first": 1, "warm": 2, "fresh": 1}
    for made in report["clips"].values():
        for clip in made:
            assert clip["bytes"] > 0 and "sampling" in clip["stages"]
            assert clip["total"] == pytest.approx(clip["rest"] + sum(clip["stages"].values()))
    printed = capsys.readouterr().out
    assert "| warm | 2 |" in printed and "cold start: " in printed


def test_a_setting_without_a_value_is_told() -> None:
    with pytest.raises(SystemExit, match="pairs"):
        main([*TINY, "--prompt-cache-bytes"])

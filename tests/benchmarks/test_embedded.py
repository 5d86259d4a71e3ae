"""The benchmark of two checkouts, by figures made up for it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.embedded import Ran, environment, table


def ran(cpu: float, total: float, clip: str = "a") -> Ran:
    return Ran(cpu, 2 * cpu, {"sampling": total / 2, "total": total}, clip)


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_ratios_are_of_the_least_of_the_medians_and_of_neighbours() -> None:
    text = table({"old": [ran(4, 3), ran(8, 3), ran(6, 3)], "new": [ran(2, 1), ran(3, 1), ran(4, 2)]})
    assert row(text, "command, CPU") == ["4.000", "6.000", "2.000", "3.000", "2.00x", "2.00x", "1.50..2.67"]
    assert row(text, "request, total")[4:] == ["3.00x", "3.00x", "1.50..3.00"]
    assert "3 runs of each in turn" in text and "the same bytes" in text


def test_clips_that_differ_are_told() -> None:
    assert "other bytes" in table({"old": [ran(1, 1)], "new": [ran(1, 1, "b")]})


def test_a_checkout_runs_its_own_modules_compiled_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    made = environment(tmp_path / "old", tmp_path / "work", {"H3_MODEL_PATH": "m"})
    assert made["PYTHONPATH"] == str(tmp_path / "old") and made["H3_MODEL_PATH"] == "m"
    assert made["OMP_NUM_THREADS"] == "1" and "PYTHONDONTWRITEBYTECODE" not in made
    assert made["XDG_CACHE_HOME"].startswith(str(tmp_path / "work"))

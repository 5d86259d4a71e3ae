"""The comparison of a plan with a load, with counters that say what they are told to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import plan_against_load
from h3runtime.settings import variable
from tests.tiny_set import tiny_paths


class Counters:
    """PyTorch's, as if every component took `factor` of what was planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
        self.factor, self.levels = factor, iter(())  # type: ignore[var-annotated]
        self.last = 0
        monkeypatch.setattr(torch.cuda, "memory_allocated", self.allocated)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: self.last)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**40 - self.last - 1000, 2**40))
        found = plan_against_load._planned

        def planned(settings: Any) -> Any:
            made = found(settings)
            self.levels = self._levels([line.bytes for line in made.shown.weights])
            return made

        monkeypatch.setattr(plan_against_load, "_planned", planned)

    def _levels(self, sizes: list[int]) -> Iterator[int]:
        yield 0
        yield from accumulate(round(size * self.factor) for size in sizes)

    def allocated(self, *_: Any) -> int:
        self.last = next(self.levels, self.last)
        return self.last


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, factor: float) -> Any:
    lines = [f"{variable(name)}={path}\n" for name, path in tiny_paths().items()]
    (folder / "h3.env").write_text("".join(lines))
    Counters(monkeypatch, factor)
    monkeypatch.setattr(sys, "argv", ["plan_against_load.py", str(folder), "--linear", "dequant"])
    code = plan_against_load.main()
    return code, json.loads(capsys.readouterr().out)


def test_a_load_as_planned_is_off_by_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, told = run(monkeypatch, capsys, tmp_path, 1.0)
    assert code == 0 and [part["off"] for part in told["components"]] == [0.0] * 5
    assert told["total"]["measured"] == told["total"]["planned"] == told["held_bytes"]
    assert told["outside_the_allocator"]["loaded"]["outside"] == 1000


def test_a_component_that_takes_more_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, told = run(monkeypatch, capsys, tmp_path, 1.03)
    assert code == 1 and all(part["off"] == pytest.approx(0.03, abs=1e-4) for part in told["components"])

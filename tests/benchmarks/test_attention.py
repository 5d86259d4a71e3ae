"""The table of attention backends, at a small size on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.attention import Shape, error_of, judged, layout_of, main
from h3runtime.backends.attention.base import exact_rows
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.sparse.sla_topk import PERCENTS
from h3runtime.backends.attention.sparse.tiles import grid_of, why_no_grid
from tests.backends.attention.fakes import qkv

SMALL = ("--rows", "96", "--heads", "2", "--head-dim", "32", "--runs", "3", "--device", "cpu")


def test_it_measures_what_runs_here_and_lists_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert main([*SMALL, "--head-slice-backend", "sdpa", "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    rows = {row["name"]: row for row in report["rows"]}
    sparse = {f"sla_topk_{percent}" for percent in PERCENTS}
    assert rows.keys() == {"sdpa", "kj_head_sliced", *sparse} and report["shape"]["rows"] == 96
    assert all(0 < row["least_ms"] <= row["ms"] <= row["most_ms"] for row in rows.values())
    assert all((row["error"] < 0.01) == (name not in sparse) for name, row in rows.items())
    assert rows["sdpa"]["error"] == rows["kj_head_sliced"]["error"]
    assert all(row["ceiling"] == "bf16" and row["ceiling_percent"] > 0 for row in rows.values())
    assert report["ceilings_tflops"]["bf16"] > 0 and len(report["unavailable"]) == 14
    printed = capsys.readouterr().out
    assert "| sdpa | reference |" in printed and "sage2: needs a CUDA device" in printed


def test_one_that_was_asked_for_and_can_t_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--backends", "sdpa,fa4"]) == 1
    assert "fa4 can't run here: needs a CUDA device" in capsys.readouterr().err


def test_what_fails_or_gives_no_number_is_not_timed() -> None:
    given = qkv(40, 3, 16)
    calls = {
        "right": lambda: SdpaAttention().call(*given),
        "nan": lambda: given[0] * torch.nan,
        "fails": lambda: given[0] @ given[1],
    }
    errors, faults = judged(calls, given)
    assert errors.keys() == {"right"} and faults.keys() == {"nan", "fails"}
    assert "no number" in faults["nan"] and "RuntimeError" in faults["fails"]


def test_the_error_is_of_the_rows_judged() -> None:
    given = qkv(40, 3, 16, torch.float32)
    out = SdpaAttention().call(*given)
    assert error_of(out, given) < 1e-6
    assert error_of(out * 1.5, given) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(("rows", "exact", "grid"), [(37_810, 514, (37, 24, 42)), (96, 18, (3, 2, 13))])
def test_its_layout_has_conditions_ahead_of_the_pictures(rows: int, exact: int, grid: tuple[int, int, int]) -> None:
    layout = layout_of(rows)
    assert layout.rows == rows and exact_rows(layout) == exact
    assert why_no_grid(layout) is None and grid_of(layout) == grid
    assert Shape(37_810, 56, 128).operations * 50 == pytest.approx(2.049e15, rel=1e-3)

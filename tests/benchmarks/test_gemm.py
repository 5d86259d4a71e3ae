"""The table of linear backends, at a small size on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gemm import SHAPES, activations, judged, main

SMALL = ("--rows", "33", "--shrink", "84", "--runs", "3", "--device", "cpu")
BOUNDS = {"resident_bf16": 0.004, "dequant": 0.004, "fp32": 0.004, "fp8": 0.05, "int8": 0.02, "nvfp4_emulated": 0.12}
"""Measured: 0.003, 0.04, 0.013 and 0.10."""


@pytest.mark.parametrize("form", ["bf16", "nvfp4"])
def test_it_measures_what_runs_here_and_lists_the_rest(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    assert main([*SMALL, "--format", form, "--peer", "diffusers", "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    able = BOUNDS.keys() - ({"nvfp4_emulated"} if form == "bf16" else set())
    rows = {(row["shape"], row["name"]): row for row in report["rows"]}
    assert rows.keys() == {(shape, name) for shape in SHAPES for name in (*able, "diffusers")}
    for (_, name), row in rows.items():
        assert 0 < row["least_ms"] <= row["ms"] <= row["most_ms"] and row["ratio"] > 0
        assert row["error"] < BOUNDS.get(name, 0.004)
        assert (row["weight_error"] is not None) == (name in ("fp8", "int8"))
    assert "needs a CUDA device" in report["unavailable"]["nvfp4"]
    assert ("nvfp4_emulated" in report["unavailable"]) == (form == "bf16")
    printed = capsys.readouterr().out
    assert "| qkv | dequant | reference |" in printed and "nvfp4: needs a CUDA device" in printed


def test_one_that_was_asked_for_and_can_t_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--backends", "dequant,nvfp4"]) == 1
    assert "nvfp4 can't run here: needs a CUDA device" in capsys.readouterr().err


def test_what_fails_or_gives_no_number_is_not_timed() -> None:
    x, weight = activations(20, 64, torch.device("cpu")), torch.ones(8, 64)
    calls = {
        "right": lambda: x.float() @ weight.T,
        "nan": lambda: x.float() @ weight.T * torch.nan,
        "fails": lambda: x @ x,
    }
    errors, faults = judged(calls, x, weight)
    assert errors == {"right": 0.0} and faults.keys() == {"nan", "fails"}
    assert "no number" in faults["nan"] and "RuntimeError" in faults["fails"]

"""`benchmarks/nvfp4_producers.py` where no GPU is: what runs there, and that other bits stop it."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import elementwise, nvfp4_producers
from benchmarks.nvfp4_case import Case
from benchmarks.nvfp4_producers import check_same, main
from h3runtime.quant import tiles


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "COPY_BYTES", 1 << 12)
    monkeypatch.setattr(nvfp4_producers, "WIDTHS", {"out": 32, "FC2": 64})


def test_every_operation_is_timed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    assert main(["--rows", "17", "--runs", "2", "--device", "cpu", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert {(row["operation"], row["family"]) for row in rows} == {
        (f"{operation} {reader}", family)
        for reader in ("out", "FC2")
        for operation, family in (
            ("tensor scale of", "torch"),
            ("pack for", "kitchen"),
            ("scale and pack for", "kitchen"),
        )
    }
    assert all(0 < row["least_ms"] <= row["ms"] <= row["most_ms"] and row["ratio"] == 1 for row in rows)
    assert "| pack for FC2 | kitchen |" in capsys.readouterr().out


def test_some_may_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "16", "--runs", "1", "--device", "cpu", "--only", "tensor"]) == 0
    told = capsys.readouterr().out
    assert "tensor scale of out" in told and "pack" not in told


def test_one_number_is_compared_as_well() -> None:
    case = Case("tensor scale", {}, 0)
    check_same(case, (torch.tensor(0.5),), (torch.tensor(0.5),), "mine")
    with pytest.raises(AssertionError, match="tensor scale: mine makes other bits"):
        check_same(case, (torch.tensor(0.0),), (torch.tensor(-0.0),), "mine")


def test_other_bits_stop_it() -> None:
    """Rows of padding may lack; nothing else may differ."""
    case = Case("pack", {}, 0)
    codes = torch.arange(48 * 8, dtype=torch.uint8).reshape(48, 8)
    scales = tiles.swizzle(torch.ones(48, 4).to(torch.float8_e4m3fn))
    check_same(case, (codes, scales), (codes[:33], scales), "mine")
    other = codes.clone()
    other[4, 4] ^= 1
    with pytest.raises(AssertionError, match="pack: mine makes other bits"):
        check_same(case, (codes, scales), (other[:33], scales), "mine")
    with pytest.raises(AssertionError, match="other bits"):
        check_same(
            case, (codes, scales), (codes, torch.zeros_like(scales.view(torch.uint8)).view(scales.dtype)), "mine"
        )

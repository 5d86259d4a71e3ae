"""`benchmarks/elementwise.py`: every family beside the definition, at a tiny size."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import elementwise
from benchmarks.elementwise import OPERATIONS, Shape, made, main
from h3runtime.backends.fused.base import Activation, Form
from h3runtime.backends.fused.definition import DEFINITION

TINY = ("--rows", "40", "--width", "48", "--heads", "2", "--head-dim", "16", "--ffn", "24", "--turning", "6")


@pytest.fixture(autouse=True)
def small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "COPY_BYTES", 1 << 12)


def test_every_operation_of_every_family_is_timed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    assert main([*TINY, "--runs", "2", "--device", "cpu", "--output", str(output)]) == 0
    report = json.loads(output.read_text())
    told = capsys.readouterr().out
    assert report["unavailable"] == {"triton": "needs a CUDA device, not cpu"}
    assert "triton: needs a CUDA device, not cpu" in told
    assert {(row["operation"], row["family"]) for row in report["rows"]} == {
        (operation.name, family) for operation in OPERATIONS for family in ("cpu", "torch")
    }
    for row in report["rows"]:
        assert 0 < row["least_ms"] <= row["ms"] <= row["most_ms"]
        assert row["differs"] == 0
        assert row["ratio"] == 1 or row["family"] != "torch"


def test_what_is_overwritten_is_brought_back() -> None:
    given = made(Shape(12, 48, 2, 16, 24, 6), torch.device("cpu"))
    for operation in OPERATIONS:
        restore = elementwise._restoring(operation, given)
        before = {name: getattr(given, name).clone() for name in ("x", "update", "qkv", "wide", "table")}
        operation.run(DEFINITION, given)
        restore()
        assert all(torch.equal(getattr(given, name), kept) for name, kept in before.items()), operation.name


def test_a_family_that_computes_something_else_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(type(DEFINITION)):
        name = "wrong"

        def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
            return super().swiglu(x + 1, codes=codes)

    monkeypatch.setattr(elementwise, "producer_families", lambda: (Wrong(), DEFINITION))
    with pytest.raises(AssertionError, match="SwiGLU of wrong"):
        main([*TINY, "--runs", "1", "--device", "cpu"])

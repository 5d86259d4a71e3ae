"""What `memory_model` runs and prints; its measuring needs a device (tests/gpu)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.memory_model import (
    LAYOUTS,
    SIZES,
    Case,
    _parser,
    features,
    grid,
    table,
    whole,
    write_adapter,
)
from h3runtime.checkpoint.synthetic.synthesis import TINY
from h3runtime.core import REUSE_THRESHOLDS
from h3runtime.engine.adapters import list_adapters


def test_a_grid_has_every_size_with_every_attention_and_every_linear_beside() -> None:
    cases = list(grid(LAYOUTS["nvfp4"], SIZES, ("sdpa", "h3_attn8")))
    assert [case.attention for case in cases] == ["sdpa", "h3_attn8", None] * len(SIZES)
    assert cases[2].linear == "nvfp4_emulated" and cases[2].name.endswith("12 steps, nvfp4_emulated")


def test_whole_requests_are_few_unless_asked_for() -> None:
    few, all_of_them = (_parser().parse_args(flags) for flags in ([], ["--whole"]))
    assert [case.brief for case in whole(few, first=True)] == [True] * 3
    assert whole(few, first=False) == () and len(whole(all_of_them, first=True)) > len(whole(all_of_them, first=False))


def test_a_table_tells_figures_and_what_failed() -> None:
    case, layout = Case(64, 64, 5, 1).name, {"layout": "bf16"}
    figures = {"rows": 59, "predicted_bytes": 3 * 2**30, "measured_bytes": 2**30, "above": 1.5}
    told = table(
        [{**layout, "held_bytes": 1}, {**layout, "case": case, **figures}, {**layout, "case": "x", "error": "y"}]
    )
    assert "| bf16 | 64x64x5, 1 steps | 59 | 3.00 | 1.00 | 1.500 |" in told
    assert told.endswith("| bf16 | x | y | | | |")


def test_features_are_an_adapter_and_each_cache() -> None:
    found = list(features(SIZES[0]))
    assert found[0].adapter and [case.reuse for case in found[1:]] == list(REUSE_THRESHOLDS)
    assert [case.name.split(", ", 2)[2] for case in found] == ["adapter", *REUSE_THRESHOLDS]


def test_requests_are_left_out_where_asked() -> None:
    assert whole(_parser().parse_args(["--stages-only"]), first=True) == ()


def test_a_file_of_zeros_is_an_adapter_as_an_engine_lists_it(tmp_path: Path) -> None:
    write_adapter(tmp_path / "loras", TINY.transformer, 4)
    (facts,) = list_adapters(tmp_path / "loras", {})
    assert (facts.fault, facts.ranks, facts.alpha) == ("", (4, 12), 4.0)
    file = tmp_path / "loras" / facts.file
    assert facts.bytes == file.stat().st_size - header_bytes(file)


def header_bytes(file: Path) -> int:
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")

"""What `memory_model` runs and prints; its measuring needs a device (tests/gpu)."""

from __future__ import annotations

from benchmarks.memory_model import LAYOUTS, SIZES, Case, _parser, grid, table, whole


def test_a_grid_has_every_size_with_every_attention_and_every_linear_beside() -> None:
    cases = list(grid(LAYOUTS["nvfp4"], SIZES, ("sdpa", "h3_attn8")))
    assert [case.attention for case in cases] == ["sdpa", "h3_attn8", None] * len(SIZES)
    assert cases[2].linear == "nvfp4_emulated" and cases[2].name.endswith("12 steps, nvfp4_emulated")


def test_whole_requests_are_few_unless_asked_for() -> None:
    few, all_of_them = (_parser().parse_args(flags) for flags in ([], ["--whole"]))
    assert [case.brief for case in whole(few, first=True)] == [True, True]
    assert whole(few, first=False) == () and len(whole(all_of_them, first=True)) > len(whole(all_of_them, first=False))


def test_a_table_tells_figures_and_what_failed() -> None:
    case, layout = Case(64, 64, 5, 1).name, {"layout": "bf16"}
    figures = {"rows": 59, "predicted_bytes": 3 * 2**30, "measured_bytes": 2**30, "above": 1.5}
    told = table(
        [{**layout, "held_bytes": 1}, {**layout, "case": case, **figures}, {**layout, "case": "x", "error": "y"}]
    )
    assert "| bf16 | 64x64x5, 1 steps | 59 | 3.00 | 1.00 | 1.500 |" in told
    assert told.endswith("| bf16 | x | y | | | |")

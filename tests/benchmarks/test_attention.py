"""The table of attention backends, at a small size on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import attention, watched
from benchmarks.attention import Shape, error_of, error_on, layout_of, main
from benchmarks.attention_inputs import recorded
from benchmarks.quality_plan import Size
from benchmarks.watched import LOST
from h3runtime.backends.attention.base import exact_rows
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.sparse.sla_topk import PERCENTS, SlaTopkAttention
from h3runtime.backends.attention.sparse.tiles import grid_of, why_no_grid
from tests.backends.attention.fakes import qkv

SMALL = ("--rows", "96", "--heads", "2", "--head-dim", "32", "--runs", "3", "--device", "cpu")


def test_it_measures_what_runs_here_and_lists_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.json"
    more = ("--without", "sla_topk_75=it hangs", "--head-slice-backend", "sdpa", "--nano")
    calls = recorded("cpu", Size(64, 64, 5), steps=(1, 2), blocks=(0, 5))
    monkeypatch.setattr(attention, "recorded", lambda *_: calls)
    assert main([*SMALL, *more, "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    rows = {row["name"]: row for row in report["rows"]}
    sparse = {"vsa", *(f"sla_topk_{percent}" for percent in PERCENTS if percent != 75)}
    assert rows.keys() == {"sdpa", "kj_head_sliced", *sparse} and report["shape"]["rows"] == 96
    assert all(0 < row["least_ms"] <= row["ms"] <= row["most_ms"] for row in rows.values())
    assert all((row["error"] < 0.01) == (name not in sparse) for name, row in rows.items())
    assert rows["sdpa"]["error"] == rows["kj_head_sliced"]["error"]
    nano = {name: set(row["nano"].values()) for name, row in rows.items()}
    assert nano["vsa"] == {None} and 0 < max(nano["sdpa"]) < 0.004, "h3-nano has no gates"
    assert all(row["ceiling"] == "bf16" and row["ceiling_percent"] > 0 for row in rows.values())
    assert report["ceilings_tflops"]["bf16"] > 0 and len(report["unavailable"]) == 18
    printed = capsys.readouterr()
    assert "| sdpa | reference |" in printed.out and "sage2: needs a CUDA device" in printed.out
    assert "sla_topk_75: it hangs" in printed.out and "sdpa: error 2" in printed.err

    assert (
        main(
            [*SMALL, "--backends", "sdpa", "--join", str(out), "nowhere.json", "--output", str(tmp_path / "both.json")]
        )
        == 0
    )
    both = json.loads((tmp_path / "both.json").read_text())
    assert both["joined"] == [name for name in rows if name != "sdpa"] and len(both["rows"]) == len(rows)
    assert both["rows"][1] == rows["kj_head_sliced"]
    assert "vsa: in another process of this machine" in capsys.readouterr().out


def test_one_that_was_asked_for_and_can_t_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--backends", "sdpa,fa4"]) == 1
    assert "fa4 can't run here: needs a CUDA device" in capsys.readouterr().err


def test_what_fails_or_gives_no_number_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The device outlives it, so that the others go on."""

    def failing(self: SlaTopkAttention, q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return q * torch.nan if self.name == "sla_topk_10" else q @ q

    monkeypatch.setattr(SlaTopkAttention, "_sparse", failing)
    out = tmp_path / "r.json"
    assert main([*SMALL, "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [row["name"] for row in report["rows"]] == ["sdpa", "vsa"]
    assert "no number" in report["unavailable"]["sla_topk_10"]
    assert "RuntimeError" in report["unavailable"]["sla_topk_50"]


class Lost(Exception):
    pass


def test_a_lost_device_ends_a_watched_run_and_says_at_what(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def failing(*_: Any, **__: Any) -> torch.Tensor:
        raise Lost("an illegal memory access")

    monkeypatch.setattr(SlaTopkAttention, "_sparse", failing)
    monkeypatch.setattr(attention, "_is_lost", lambda _: True)
    beat = tmp_path / "at"
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, "--watched", str(beat)])
    assert ended.value.code == LOST
    assert beat.read_text().splitlines() == ["sla_topk_75", "lost the device at this size: an illegal memory access"]
    with pytest.raises(Lost):
        main(SMALL)


SCRIPT = """
import pathlib, sys, time
words = sys.argv[1:]
left_out = [word.partition("=")[0] for word in words]
beat = pathlib.Path(words[-1])
for name in ("hangs", "dies", "lost"):
    if name in left_out:
        continue
    beat.write_text(name)
    if name == "hangs":
        time.sleep(60)
    if name == "lost":
        beat.write_text("lost\\nits device")
        raise SystemExit(3)
    raise SystemExit(9)
print("told", [word for word in words if "=" in word])
"""


def test_what_hangs_or_dies_costs_itself_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert watched.run(script, [], patience=1.0) == 0
    printed = capfd.readouterr().out
    for told in ("hangs=no sign of life for 1 s", "dies=ended its process with status 9", "lost=its device"):
        assert told in printed


def test_what_h3_nano_gives_is_kept_by_step_and_block() -> None:
    """An exact backend is exact on it; calls that are given away aren't judged."""
    calls = recorded("cpu", Size(64, 64, 5), steps=(0, 1), blocks=(0, 5))
    assert [(call.step, call.block) for call in calls] == [(0, 0), (0, 5), (1, 0), (1, 5)]
    assert all(x.shape == (1, call.layout.rows, 2, 128) for call in calls for x in call.qkv)
    tally = Tally()
    assert 0 < (error_on(SdpaAttention(), calls, tally) or 0) < 0.004
    sparse = SlaTopkAttention("sla_topk_10", 0.1, SdpaAttention(), tally)
    assert sparse.dense_steps == 1 and error_on(sparse, calls[:2], tally) is None


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

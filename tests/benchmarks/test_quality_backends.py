"""The table of backends and lanes: which ways there are, that a failure costs itself alone, and what is compared."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import quality_backends, quality_engines
from benchmarks.quality_backends import (
    LANES,
    make_ways,
    planned,
    prompts_of,
    raise_if_given_away,
    run_all,
    write_report,
)
from benchmarks.quality_plan import EXACT, Schedule
from benchmarks.quality_records import Records
from h3runtime.backends.attention.counting import Fallback, Tally
from h3runtime.backends.linear.select import linear_backends
from h3runtime.checkpoint.synthetic.tiny import tiny_set
from h3runtime.errors import BackendUnavailable
from h3runtime.settings import default_cache_dir


def arguments(folder: Path, *words: str) -> argparse.Namespace:
    given = quality_backends._parser().parse_args([str(folder), "--device", "cpu", *words])
    folder.mkdir(exist_ok=True)
    return given


def test_every_backend_has_a_way_or_a_reason(tmp_path: Path) -> None:
    plan = planned(arguments(tmp_path))
    by_name = {each.name: each for each in plan}
    assert len(by_name) == len(plan) and by_name.keys() >= {"cudnn_sdpa", "sage3", "vsa", "sla_topk_10", *LANES}
    assert by_name["fa4"].fault == "needs a CUDA device, and this is cpu" and not by_name["sla_topk_10"].fault
    assert by_name["high, sage2"].fault and by_name["medium, sla_topk_25"].way.linear == "fp8"
    linears = {each.way.linear for each in plan if each.group == "linear"} | {"resident_bf16"}
    assert linears == {backend.name for backend in linear_backends()}
    assert [each.name for each in planned(arguments(tmp_path, "--only", "bf16/int8"))] == ["bf16/int8"]


def test_prompts_are_of_both_splits(tmp_path: Path) -> None:
    found = prompts_of(arguments(tmp_path, "--prompts", "5", "--task", "t2va", "i2va"))
    assert len(found) == 5 and {p.split for p in found} == {"trained", "held_out"}
    assert {p.task for p in found} == {"t2va", "i2va"}
    assert len({(p.task, p.split, p.index) for p in found}) == 5


SCRIPT = """
import os, pathlib, sys, time
folder, names = pathlib.Path(sys.argv[1]), sys.argv[sys.argv.index("--ways") + 1:]
for name in names:
    print("at:", name, flush=True)
    if name == "told":
        print("fault: told: why: not", flush=True)
    if name == "full" and not (folder / "full").exists():
        (folder / "full").touch()
        print("fault: full: the device's memory is full", flush=True)
    if name == "dies":
        os.kill(os.getpid(), 9)
    if name == "hangs":
        time.sleep(60)
"""


def test_what_fails_or_hangs_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it in its process are begun again, and a full device is tried twice."""
    given = arguments(tmp_path, "--processes", "2", "--patience", "2")
    monkeypatch.setattr(quality_backends, "_command", lambda _: [sys.executable, "-c", SCRIPT, str(tmp_path)])
    faults = run_all(given, ["told", "hangs", "dies", "right", "behind", "full"])
    assert {name for name, why in faults.items() if not why} == {"right", "behind", "full"}
    assert faults["told"] == "why: not" and faults["dies"].startswith("ended its process with status -9")
    assert faults["hangs"].startswith("ended its process with status -9: at: hangs") and len(faults) == 6


def test_a_way_that_another_backend_made_is_told() -> None:
    tally = Tally()
    raise_if_given_away("sol_attn", tally)
    tally.fallbacks[Fallback("sol_attn", "sage2", "200 rows are too few")] += 1
    with pytest.raises(BackendUnavailable, match="every call went to sage2: 200 rows"):
        raise_if_given_away("sol_attn", tally)
    tally.dispatches["sol_attn"] += 1
    raise_if_given_away("sol_attn", tally)


def test_ways_are_judged_against_the_exact_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the tiny set, which stands for every format."""
    monkeypatch.setattr(quality_engines, "embedded_set", lambda *_, **__: tiny_set(default_cache_dir()))
    monkeypatch.setattr(quality_backends, "SCHEDULE", Schedule(3))
    folder = tmp_path / "out"
    only = ("exact", "sla_topk_10", "vsa", "fa4")
    given = arguments(folder, "--prompts", "2", "--size", "64x64x5", "--only", *only)
    plan = planned(given)
    make_ways(given, [each for each in plan if not each.fault])
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("fault")] == [
        "fault: vsa: attention: vsa can't run here: the checkpoint has no attn.to_gate_compress, so it wasn't trained "
        "for video sparse attention"
    ]
    assert said.count("at: sla_topk_10") == 2 and said.count("at: vsa") == 1
    records = list(Records(folder).read())
    assert len(records) == 4 and len({record.checkpoint for record in records}) == 1
    told: list[Any] = [record.figures["exact"] for record in records if record.way != EXACT]
    assert len(told) == 2 and 0 < max(each["video_l2"] for each in told) < 1
    text = write_report(folder, plan)
    assert "| lane | exact | 2 |" in text and "| attention | sla_topk_10 | 2 |" in text
    assert "attention fa4: needs a CUDA device" in text
    report = json.loads((folder / "backends.json").read_text())
    assert {each["name"] for each in report if each["row"] is None} == {"vsa", "fa4"}
    given.seconds = -1.0
    make_ways(given, plan[:1])
    assert len(list(Records(folder).read())) == 2, "the exact clips are begun anew, and none is made in time"
    assert "lane exact: no clip in time" in write_report(folder, plan)

"""The table of a machine: scripts that end, fail and hang, and the rows of what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks import attention, elementwise, gemm, request, step, vae
from benchmarks import table as script
from benchmarks.table import Asked, Part, _end, main, parts_of, read_runs, run, run_all
from benchmarks.table_rows import READERS, Run, table
from h3runtime.__main__ import main as command

SMALL = Asked(quick=True, small=True, device="cpu", peer="", request=None)
REAL = Asked(quick=False, small=False, device="auto", peer="diffusers", request=("--runs", "2"))
CLIP = {"total": 2.0, "stages": {"sampling": 1.5, "mux": 0.25}, "rest": 0.25, "bytes": 9}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def part(name: str, code: str, seconds: float = 30.0) -> Part:
    """A script that gets `--output FILE` as its last argument."""
    return Part(name, (sys.executable, "-c", f"import json, sys, time\nout = sys.argv[-1]\n{code}"), seconds)


def told(name: str, seconds: float = 1.0) -> Run:
    return Run(name, True, "done", seconds, "x")


def test_a_script_that_fails_or_hangs_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "gemm.json").write_text("{}")
    parts = [
        part("attention", "time.sleep(60)", 0.2),
        part("gemm", "print('no such kernel'); sys.exit(3)"),
        part("vae", "json.dump({'rows': []}, open(out, 'w'))"),
    ]
    run_all(parts, tmp_path)
    runs = read_runs(tmp_path)
    assert [one.told for one in runs] == ["took longer than 0.2 s", "status 3", "done"]
    assert "no such kernel" in (tmp_path / "gemm.log").read_text() and not (tmp_path / "gemm.json").exists()
    text, whole = table(tmp_path, runs)
    assert not whole and "gemm: status 3; it left no report" in text and "vae: " not in text


def test_what_a_script_has_started_ends_with_it(tmp_path: Path) -> None:
    child = subprocess.Popen(["bash", "-c", f"sleep 60 & echo $! >{tmp_path}/pid; wait"], start_new_session=True)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
        time.sleep(0.01)
    _end(child)
    assert child.returncode is not None
    stat = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    with suppress(OSError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


def test_parts_that_ran_before_stay_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = "json.dump({'rows': []}, open(out, 'w'))"
    run_all([part("vae", left)], tmp_path)
    run_all([part("gemm", left)], tmp_path)
    assert [one.name for one in read_runs(tmp_path)] == ["gemm", "vae"]
    assert main(["--from", str(tmp_path)]) == 0
    (tmp_path / "vae.json").write_text('{"rows": [{"half": "decode"}]}')
    assert main(["--from", str(tmp_path)]) == 1
    assert "vae: unreadable: KeyError: 'psnr'" in capsys.readouterr().out
    (tmp_path / "vae.json").write_text("[")
    assert main(["--from", str(tmp_path)]) == 1
    assert "vae: its report can't be read" in capsys.readouterr().out


def test_a_folder_of_reports_needs_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", str(tmp_path)]) == 1
    assert "no report lies there" in capsys.readouterr().err
    (tmp_path / "gemm.json").write_text('{"rows": [], "unavailable": {"nvfp4": "no"}}')
    assert main(["--from", str(tmp_path)]) == 0
    assert "gemm: nvfp4: no" in capsys.readouterr().out
    (tmp_path / "runs.json").write_text("{")
    assert main(["--from", str(tmp_path)]) == 1
    assert "error: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--only", "vae,sound"])
    assert "no part sound (legal: attention" in capsys.readouterr().err


def test_every_script_takes_its_flags_and_its_report_makes_rows(tmp_path: Path) -> None:
    """As `table.py OUT --sizes small` runs them, in this process."""
    mains = {"attention": attention, "gemm": gemm, "elementwise": elementwise, "step": step, "vae": vae}
    parts = parts_of(SMALL)
    assert [one.name for one in parts] == [name for name in READERS if name != "request"]
    for one in parts:
        output = ("--output", str(tmp_path / f"{one.name}.json"))
        if one.name in mains or one.name == "medium":
            assert mains.get(one.name, step).main([*one.command[2:], *output]) == 0
        else:
            assert one.command[1:3] == ("-m", "h3runtime") and command([*one.command[3:], *output]) == 0
    text, whole = table(tmp_path, [told(one.name) for one in parts])
    assert whole and text.startswith("cpu, torch ") and "8 s in all" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.split("|")[1].strip() for line in rows[1:]} == {one.name for one in parts}
    assert all(line.count("|") == rows[0].count("|") for line in rows)
    assert sum(line.startswith("| block |") for line in rows) == 27
    assert any("| forward, exact |" in line and "above its floor" in line for line in rows)
    assert any("| sampling of 4 steps, medium@" in line and "forwards; products: fp8" in line for line in rows)
    assert "attention: fa4: needs a CUDA device" in text


def test_the_flags_of_the_published_sizes_are_legal() -> None:
    for one in parts_of(REAL):
        flags = one.command[2:]
        if one.name == "medium":
            asked = step._asked(step._parser().parse_args(flags))
            assert [lane.name for lane in asked.lanes] == ["high", "reuse", "sparse", "medium"]
            assert [one.name for one in asked.samplings].count("medium") == 3
            assert asked.samplings[1].name == asked.peer == "diffusers" and asked.samplings[0].skipped
            assert asked.sampling_steps is None and asked.seconds is not None and asked.seconds < one.seconds
        elif one.name == "step":
            asked = step._asked(step._parser().parse_args(flags))
            assert asked.compiled and asked.peer == "diffusers" and asked.rounds == 3
            assert asked.seconds is not None and asked.seconds < one.seconds
        elif one.name == "request":
            assert flags == ("--runs", "2")
        elif not one.name.startswith("block"):
            module = {"attention": attention, "gemm": gemm, "elementwise": elementwise, "vae": vae}[one.name]
            assert module._parser().parse_args(flags).runs in (3, 5)
    assert [one.name for one in parts_of(REAL)] == sorted(READERS, key=list(READERS).index)


def test_a_request_has_the_ratio_of_a_fresh_clip(tmp_path: Path) -> None:
    report = {"clips": {"warm": [CLIP], "fresh": [CLIP]}, "peer": {"clips": [{**CLIP, "total": 3.0}]}}
    (tmp_path / "request.json").write_text(json.dumps(report))
    text, whole = table(tmp_path, [told("request")])
    assert (
        whole
        and "| fresh clip | 2000 | 2000..2000 | 1.50x |" in text
        and "| warm clip | 2000 | 2000..2000 |  |" in text
    )
    assert "| diffusers clip | 3000 |" in text and "sampling 1.50, mux 0.25" in text
    (tmp_path / "request.json").write_text(json.dumps({"clips": {"warm": [CLIP]}}))
    assert table(tmp_path, [told("request")])[1] and request._parser() is not None


def test_a_script_gets_a_place_for_its_report_and_no_input(tmp_path: Path) -> None:
    done = run(part("step", "json.dump({'argv': sys.argv[1:], 'in': sys.stdin.read()}, open(out, 'w'))"), tmp_path)
    assert done.done and done.told == "done" and "--output" in done.command
    left = json.loads((tmp_path / "step.json").read_text())
    assert left == {"argv": ["--output", str(tmp_path / "step.json")], "in": ""} and script.ROOT.is_dir()

"""`compare.py`: the exit code, and that every fault is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import main
from benchmarks.contract import STAGES, contract_names, read_contract
from tests.benchmarks.made import CPU, GB10, SECONDS, made, written

ROOT = Path(__file__).parents[2]
SMOKE, CANONICAL, REF = "smoke-320x192-22f", "t2va-1344x768-124f", "ref2va-960x544-124f"

Compare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Exit code, stdout, stderr for a result and perhaps a baseline, as JSON values."""

    def run(result: Any, baseline: Any = None, *flags: str) -> tuple[int, str, str]:
        arguments = ["--result", written(tmp_path, "R", result), *flags]
        if baseline is not None:
            arguments += ["--baseline", written(tmp_path, "B", baseline)]
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def lines(out: str, head: str) -> list[str]:
    return [line.removeprefix(head).strip() for line in out.splitlines() if line.startswith(head)]


@pytest.mark.parametrize("name", contract_names())
def test_what_the_contract_says_is_as_it_should_be(compare: Compare, name: str) -> None:
    code, out, err = compare(made(read_contract(name)))
    assert (code, err) == (0, "")
    for stage, seconds in SECONDS.items():
        assert any(line.split()[:2] == [stage, f"{seconds:.4f}"] for line in out.splitlines())
    assert lines(out, "verdict") == ["as it should be"]


MISMATCHES = {
    "contract_sha256": "0" * 64,
    "run__task": "i2va",
    "run__width": 352,
    "run__height": 160,
    "run__frames": 39,
    "run__latents__video": [24, 7, 12, 22],
    "run__latents__audio": [32, 2, 38],
    "run__sampling__seed": "1",
    "run__sampling__sampler": "euler",
    "run__sampling__scheduler": "simple",
    "run__sampling__steps": 3,
    "run__sampling__forwards": 3,
    "run__sampling__shift": 6.0,
    "run__sampling__audio_shift": 2.0,
    "run__prompt_cache": "on",
    "run__warm_up_runs": 0,
    "samples": {stage: [1.0, 2.0] for stage in STAGES},
    "run__rows": {"text": 101, "video": 420, "audio": 74, "references": 0, "total": 595},
}


@pytest.mark.parametrize("path", MISMATCHES)
def test_each_field_of_the_run_counts(compare: Compare, path: str) -> None:
    code, out, _ = compare(made(read_contract(SMOKE), **{path: MISMATCHES[path]}))
    field = path.removeprefix("run__").replace("__", ".")
    assert code == 1
    assert all(line.startswith(field) for line in lines(out, "mismatch"))
    assert lines(out, "mismatch")


def test_every_mismatch_is_named_with_what_it_should_be(compare: Compare) -> None:
    code, out, _ = compare(made(read_contract(SMOKE), **MISMATCHES))
    told = lines(out, "mismatch")
    assert code == 1
    # One a field, and of the rows the text and the total.
    assert len(told) == len(MISMATCHES) + 1
    assert "rows.text: ran 101, should be 100" in told and "rows.total: ran 595, should be 594" in told
    assert "samples: ran 2, should be at least 3" in told
    assert "latents.video: ran [24, 7, 12, 22], should be [24, 7, 12, 20]" in told
    assert lines(out, "verdict") == [f"{len(told)} mismatches, 0 regressions"]


def test_rows_that_do_not_add_up_are_a_mismatch_too(compare: Compare) -> None:
    code, out, _ = compare(made(read_contract(SMOKE), run__rows__total=600))
    assert (code, lines(out, "mismatch")) == (1, ["rows.total: ran 600, should be 594"])


def test_a_workload_without_a_contract_is_no_workload(compare: Compare) -> None:
    code, out, _ = compare(made(read_contract(SMOKE), contract="t2va-64x64-5f"))
    assert code == 1
    (told,) = lines(out, "mismatch")
    assert told.startswith("contract: ran t2va-64x64-5f, should be ") and all(name in told for name in contract_names())


def test_references_that_are_open_may_have_any_rows_but_not_others(compare: Compare) -> None:
    signed = read_contract(REF)
    assert compare(made(signed))[0] == 0
    rows = {"text": 100, "video": 18_869, "audio": 414, "references": 51, "total": 19_434}
    code, out, _ = compare(made(signed, run__rows=rows))
    assert (code, lines(out, "mismatch")) == (
        (1, ["rows.video: ran 18869, should be 18870", "rows.total: ran 19434, should be 19435"])
    )


def test_a_requirement_of_a_contract_is_kept(compare: Compare, tmp_path: Path) -> None:
    text = json.loads((ROOT / "benchmarks" / f"{SMOKE}.json").read_text())
    text["requires"] = {"precision": "bf16", "attention": "sdpa", "linear": None}
    folder = tmp_path / "contracts"
    folder.mkdir()
    written(folder, SMOKE, text)
    code, out, _ = compare(made(read_contract(SMOKE, folder)), None, "--contracts", str(folder))
    assert (code, lines(out, "mismatch")) == (1, ["precision: ran nvfp4, should be bf16"])


@pytest.mark.parametrize(("share", "code"), [(0.5, 0), (1.0, 0), (1.019, 0), (1.02, 0), (1.021, 1), (1.5, 1)])
def test_two_per_cent_slower_than_the_baseline_is_enough(compare: Compare, share: float, code: int) -> None:
    signed = read_contract(SMOKE)
    found, out, _ = compare(made(signed, seconds=share), made(signed))
    assert found == code
    assert len(lines(out, "regression")) == len(STAGES) * code


@pytest.mark.parametrize("stage", STAGES)
def test_one_slow_stage_is_named(compare: Compare, stage: str) -> None:
    signed = read_contract(SMOKE)
    slow = made(signed)
    slow["samples"][stage] = [seconds * 1.05 for seconds in slow["samples"][stage]]
    code, out, _ = compare(slow, made(signed))
    assert (code, lines(out, "regression")) == (1, [f"{stage}: +5.0% against the baseline; allowed +2.0%"])
    assert compare(slow, made(signed), "--tolerance", "0.06")[0] == 0


def test_the_median_is_judged_and_not_an_outlier(compare: Compare) -> None:
    signed = read_contract(SMOKE)
    outlier = made(signed)
    outlier["samples"]["mux"][2] = 1000.0
    assert compare(outlier, made(signed))[0] == 0


OTHERS = {"device": GB10, "threads": CPU | {"threads": 2}, "processor": CPU | {"cpu": "Another"}}


@pytest.mark.parametrize("other", OTHERS)
def test_times_of_another_machine_are_not_comparable(compare: Compare, other: str) -> None:
    signed = read_contract(SMOKE)
    code, out, _ = compare(made(signed, seconds=9.0), made(signed, machine=OTHERS[other]))
    (told,) = lines(out, "mismatch")
    assert code == 1
    assert told.startswith("baseline.machine: ") and "not comparable" in told
    assert lines(out, "regression") == []


def test_another_version_of_the_software_is_what_one_compares(compare: Compare) -> None:
    signed = read_contract(SMOKE)
    changes = {"machine__torch": "2.14.0", "machine__driver": "600", "runtime__version": "0.2.0"}
    changes |= {"backends__attention": "sage3"}
    code, out, _ = compare(made(signed, **changes, approximations=["attention sage3: validated"]), made(signed))
    assert code == 0
    assert any(note.startswith("approximations are not the baseline's") for note in lines(out, "note"))
    assert any(note.startswith("backends are not the baseline's") for note in lines(out, "note"))


def test_a_baseline_of_other_work_is_no_baseline(compare: Compare) -> None:
    signed, other = read_contract(SMOKE), read_contract(CANONICAL)
    code, out, _ = compare(made(signed), made(other))
    told = lines(out, "mismatch")
    assert code == 1
    for field in ("baseline.contract", "baseline.contract_sha256", "baseline.rows.video", "baseline.sampling.steps"):
        assert any(line.startswith(f"{field}:") for line in told)
    larger = made(signed)
    larger["checkpoints"] = [larger["checkpoints"][0] | {"bytes": 200}]
    code, out, _ = compare(larger, made(signed))
    assert code == 1 and lines(out, "mismatch")[0].startswith("baseline.checkpoints: ")


def test_a_figure_is_judged_on_its_own_machine_and_nowhere_else(compare: Compare) -> None:
    signed = read_contract(CANONICAL)

    def with_sampling(seconds: float, **changes: Any) -> dict[str, Any]:
        result = made(signed, **changes)
        result["samples"]["sampling"] = [seconds] * 3
        return result

    code, out, _ = compare(with_sampling(300.0))
    assert code == 0 and "255.447 s for sampling" in out and "(shown only)" in out
    code, out, _ = compare(with_sampling(300.0, machine=GB10))
    assert code == 1 and "(judged)" in out
    assert lines(out, "regression") == ["sampling: +17.4% against the figure of 255.447 s on DGX Spark; allowed +2.0%"]
    assert compare(with_sampling(255.447 * 1.019, machine=GB10))[0] == 0
    assert compare(with_sampling(300.0, machine=GB10, precision__transformer="bf16"))[0] == 0


def test_a_figure_of_unknown_rows_is_only_shown(compare: Compare) -> None:
    machine = GB10 | {"device": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"}
    code, out, _ = compare(made(read_contract(REF), machine=machine, seconds=1000.0))
    assert code == 0 and "49.893 s" in out and "ComfyUI" in out and "(shown only)" in out


def peer(**changes: Any) -> dict[str, Any]:
    samples = {"sampling": [4.0, 4.0, 4.0]}
    return {"name": "diffusers", "version": "0.42.1", "settings": "bf16", "forwards": 2, "rows": 594} | (
        {"samples": samples} | changes
    )


def test_a_peer_of_the_same_run_gives_a_ratio(compare: Compare) -> None:
    signed = read_contract(SMOKE)
    code, out, _ = compare(made(signed, peer=peer()))
    assert code == 0
    (line,) = [line.split() for line in out.splitlines() if line.startswith("sampling")]
    assert line[-2:] == ["4.0000", "2.00"]
    code, out, _ = compare(made(signed, peer=peer(forwards=3, rows=500)))
    told = ["peer.forwards: ran 3, should be 2", "peer.rows: ran 500, should be 594"]
    assert (code, lines(out, "mismatch")) == (1, told)


ILL_FORMED: dict[str, Any] = {
    "no object": [],
    "unknown field": {"colour": "red"},
    "seed as number": {"run__sampling__seed": 440407},
    "text as number": {"run__width": "320"},
    "true as number": {"run__frames": True},
    "open rows": {"run__rows": {"text": 100, "video": 420, "audio": 74, "references": None, "total": 594}},
    "unequal samples": {"samples__mux": [1.0]},
    "no samples": {"samples": {stage: [] for stage in STAGES}},
    "a stage missing": {"samples": {stage: [1.0] * 3 for stage in STAGES[1:]}},
    "a negative time": {"samples__mux": [1.0, -1.0, 1.0]},
    "infinite": {"start__cold_start_seconds": float("inf")},
    "not a number": {"samples__mux": [1.0, float("nan"), 1.0]},
    "a hash": {"contract_sha256": "abc"},
    "a name that is a path": {"contract": "../benchmarks/smoke-320x192-22f"},
    "a time without a zone": {"recorded_at": "2026-11-30T12:00:00"},
    "no checkpoint": {"checkpoints": []},
}


@pytest.mark.parametrize("fault", ILL_FORMED)
def test_an_ill_formed_result_is_told_apart(compare: Compare, fault: str) -> None:
    given = ILL_FORMED[fault]
    signed = read_contract(SMOKE)
    result = made(signed, **given) if isinstance(given, dict) else given
    code, out, err = compare(result)
    assert (code, out) == (2, "") and err.startswith("error: R.json: ") and err.count("\n") == 1
    code, out, err = compare(made(signed), result)
    assert (code, out) == (2, "") and err.startswith("error: B.json: ")


def test_a_file_that_cannot_be_read_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in (("none", None), ("text", b"hello"), ("cut", b'{"contract": "smoke'), ("bytes", b"\xff\xfe\x00")):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        assert main(["--result", str(path)]) == 2
        assert name in capsys.readouterr().err
    assert main(["--result", str(tmp_path)]) == 2


def test_a_false_contract_is_no_fault_of_the_result(compare: Compare, tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / f"{SMOKE}.json").write_text("{}")
    code, _, err = compare(made(read_contract(SMOKE)), None, "--contracts", str(folder))
    assert code == 2 and err.startswith(f"error: {SMOKE}.json: ")


def test_it_runs_as_a_script_from_anywhere(tmp_path: Path) -> None:
    signed = read_contract(SMOKE)
    script = [sys.executable, str(ROOT / "benchmarks" / "compare.py")]
    good, bad = written(tmp_path, "good", made(signed)), written(tmp_path, "bad", made(signed, run__width=352))
    for path, code in ((good, 0), (bad, 1), (str(tmp_path / "none"), 2)):
        done = subprocess.run([*script, "--result", path], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == code and "Traceback" not in done.stderr
    assert subprocess.run(script, cwd=tmp_path, capture_output=True, timeout=240).returncode == 2

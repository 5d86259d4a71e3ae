"""The benchmark of a step, at a small size on the CPU."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.contract import read_contract
from benchmarks.step import main
from benchmarks.step_floor import _Bench, floor_ms, parts_of
from benchmarks.step_lanes import LANES, SIGMA, STEP, Lane, Lanes
from benchmarks.step_loop import kernels_of, waits_of
from benchmarks.step_peer import peer_model, peer_of, peer_weights
from benchmarks.step_report import Work, ratio_of, table
from benchmarks.step_session import SIZES, Asked, Runner, Session, error_of
from benchmarks.step_times import sustained, union_ms
from benchmarks.step_workload import Workload, workload_of
from benchmarks.watched import LOST, Beat
from h3runtime.core import SegmentKind
from h3runtime.engine.made_network import made_weights

CPU = torch.device("cpu")
SMOKE = ("--sizes", "small", "--workload", "smoke-320x192-22f", "--device", "cpu")
SMALL = SIZES["small"]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def given() -> Workload:
    """The smoke clip, four times smaller in each direction: what is computed doesn't depend on its length."""
    contract = read_contract("smoke-320x192-22f").contract
    return workload_of(shrunk(contract, (24, 2, 4, 6), 5), SMALL.text_dim, CPU)


def shrunk(contract: Any, video: tuple[int, ...], sounds: int) -> Any:
    latents = contract.latents.model_copy(update={"video": video, "audio": (32, 2, sounds)})
    return contract.model_copy(update={"latents": latents})


def test_lanes_and_peer_are_told_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert main([*SMOKE, "--peer", "diffusers", "--rounds", "2", "--steps", "1", "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert rows.keys() == {"exact", "high", "diffusers"} and report["rows_packed"] == 594
    assert (rows["exact"]["linear"], rows["high"]["linear"]) == ("resident_bf16", "fp8")
    for name, row in rows.items():
        ratio = row["ratios"]["diffusers"]
        assert len(row["times_ms"]) == 2 and 0 < row["least_ms"] <= row["ms"] <= row["most_ms"]
        assert ratio["least"] <= ratio["median"] <= ratio["most"] and row["ceiling_percent"] > 0
        assert (row["floor_ms"] is None) == (name == "diffusers") == (row["loop_ms"] is None)
        assert row["overhead_percent"] is row["waits"] is row["peak_bytes"] is None
    # As far apart as two roundings to BF16 are; FP8 is farther.
    assert rows["diffusers"]["error"] == 0 and rows["exact"]["error"] < 0.015 < rows["high"]["error"] < 0.1
    assert not report["faults"] and not report["left_out"] and not (tmp_path / "r.json.part").exists()
    printed = capsys.readouterr().out
    assert "| exact | sdpa, resident_bf16, cpu |" in printed and "| fc2 | 3 |" in printed
    assert "exact: attention: fa4 can't run here: needs a CUDA device" in printed


def test_another_lane_and_another_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    asked = ("--linear", "int8", "--producers", "torch", "--steps", "0", "--no-floor", "--rounds", "1")
    assert main([*SMOKE, *asked, "--scaling", "smoke-320x192-22f", "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    (row,), (growth,) = report["rows"], report["growth"]
    assert (row["name"], row["linear"], row["producers"]) == ("asked", "int8", "torch") and row["error"] == 0
    assert growth["work"] == 1 and growth["excess_percent"] == pytest.approx(100 * (growth["times"] - 1))
    assert not report["parts"] and not report["loops"] and "beyond the work" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--attention", "fa4"), "fa4 can't run here: needs a CUDA device"),
        (("--linear", "nvfp4"), "nvfp4 can't run here"),
        (("--producers", "triton"), "triton can't run here"),
        (("--output", "/nowhere/r.json"), "output: /nowhere is not a folder"),
    ],
)
def test_what_can_t_run_and_was_asked_for_is_an_error(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMOKE, *arguments]) == 1
    assert told in capsys.readouterr().err


def test_lanes_are_legal_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*SMOKE, "--lanes", "exact,fast"])
    assert "no lane fast (legal: exact, high, reuse, sparse, medium)" in capsys.readouterr().err


def test_references_reach_ours_and_the_peer() -> None:
    contract = read_contract("ref2va-960x544-124f").contract
    references = (
        contract.references[0].model_copy(update={"width": 64, "height": 96}),
        contract.references[2].model_copy(update={"width": 64, "height": 64, "seconds": 0.5}),
        contract.references[3].model_copy(update={"seconds": 0.1}),
    )
    small = shrunk(contract, (24, 2, 4, 4), 5).model_copy(update={"references": references, "width": 64, "height": 64})
    given = workload_of(small, SMALL.text_dim, CPU)
    assert [reference.kind for reference in given.references] == ["image", "video", "audio"]
    kinds = [segment.kind for segment in given.layout.segments]
    ref_image, ref_audio = SegmentKind.REF_IMAGE, SegmentKind.REF_AUDIO
    assert kinds[1:-2] == [ref_image, ref_audio, ref_image, ref_audio] and given.references[2].audio_latent is not None
    assert given.references[2].audio_latent.shape == (1, 32, 2, 4)
    weights = made_weights(SMALL, CPU)
    ours = Lanes(SMALL, weights, CPU).ready(LANES["exact"], given)
    theirs = peer_of(peer_model(SMALL, peer_weights(weights), weights["rope.inv_freq"]), given, SIGMA)
    with torch.no_grad():
        assert error_of(ours.forward(), theirs.velocities(theirs.forward())) < 0.015
        with theirs.few(1):
            assert error_of(ours.few(1), theirs.velocities(theirs.forward())) < 0.015
        assert len(theirs.model.transformer_blocks) == SMALL.layers


def test_the_peer_s_tensors_are_ours_but_fc1() -> None:
    weights = made_weights(SMALL, CPU)
    theirs = peer_weights(weights)
    q, k, v = (theirs[f"transformer_blocks.2.attn.to_{third}.weight"] for third in "qkv")
    assert torch.equal(torch.cat([q, k, v]), weights["blocks.2.attn.qkv_proj.weight"])
    pointers = {tensor.untyped_storage().data_ptr() for tensor in weights.values()}
    copied = {name for name, tensor in theirs.items() if tensor.untyped_storage().data_ptr() not in pointers}
    assert copied == {name for name in theirs if name.endswith(".ff.net.0.proj.weight")}


def test_the_parts_are_the_forward(given: Workload) -> None:
    lane = Lanes(SMALL, made_weights(SMALL, CPU), CPU).ready(replace(LANES["high"], producers=("torch",)), given)
    with torch.no_grad():
        before = lane.forward()
        parts = parts_of(lane, CPU)
        assert error_of(lane.forward(), before) == 0
    names = [part.name for part in parts]
    assert names[:5] == ["embedding", "norm + modulation", "QKV", "norm + RoPE of q, k", "attention"]
    assert names[-4:] == ["SwiGLU", "fc2", "gated residual", "heads"] and len(names) == len(set(names))
    assert {part.count for part in parts[1:-1]} == {SMALL.layers} and parts[0].count == parts[-1].count == 1
    assert floor_ms(parts) == pytest.approx(sum(part.count * part.ms for part in parts))


@pytest.mark.parametrize("producers", ["torch", "cpu"])
def test_a_block_taken_apart_computes_what_it_computes_otherwise(given: Workload, producers: str) -> None:
    lane = Lanes(SMALL, made_weights(SMALL, CPU), CPU).ready(replace(LANES["exact"], producers=(producers,)), given)
    with torch.no_grad():
        apart, whole = (lane.network.begin(lane.prepared, given.video, given.audio, SIGMA) for _ in range(2))
        _Bench(CPU).take_apart(lane.network.blocks, apart)
        assert torch.equal(apart.h, lane.network.advance(replace(whole, blocks=1), 2).h)
    assert not any(module._forward_pre_hooks for module in lane.network.modules())


def test_the_fastest_attention_is_chosen(given: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"sdpa": 3.0, "kj_head_sliced": 2.0}
    monkeypatch.setattr(Lanes, "_tried", lambda _, backend, *rest: times[backend.name])  # noqa: ARG005
    weights, names = made_weights(SMALL, CPU), ("sdpa", "fa4", "sla_topk_50")
    times["sla_topk_50"] = 1.0
    ready = Lanes(SMALL, weights, CPU).ready(Lane("mine", names, "resident_bf16"), given)
    assert ready.attention.name == "sla_topk_50" and "attention: sdpa takes 3.0 ms" in ready.passed
    assert any("fa4 can't run here" in told for told in ready.passed)


def test_what_fails_or_gives_no_number_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked("smoke-320x192-22f", "small", (), None, False, 2, True, 1, None, None)
    written: list[dict[str, Any]] = []
    session = Session(asked, CPU, {}, written.append, Beat(None))
    one = torch.ones(3)

    def runner(name: str, few: Any) -> Runner:
        return Runner(name, lambda: (one, one), lambda made: made, few)

    def fails(_: int) -> Any:
        raise RuntimeError("no such kernel\nmore")

    runners = {"right": runner("right", lambda _: (one, one)), "fails": runner("fails", fails)}
    runners["nan"] = runner("nan", lambda _: (one, one * torch.nan))
    monkeypatch.setattr(session, "_runners", lambda: runners)
    report = session.run()
    assert [row["name"] for row in report["rows"]] == ["right"]
    assert report["faults"] == {"fails": "RuntimeError: no such kernel", "nan": "gives what is no number"}
    assert [len(at["rows"][0]["times_ms"]) for at in written] == [1, 2, 2, 2, 2]


def test_what_is_left_out_is_told_and_costs_itself_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, beat = tmp_path / "r.json", tmp_path / "beat"
    without = (
        "--without",
        "sla_topk_50=no sign of life for 120 s",
        "--without",
        "sla8_topk_50",
        "--without",
        "high",
        "--lanes",
        "exact,high,medium",
    )
    quick = ("--rounds", "1", "--steps", "0", "--no-floor", "--peer", "diffusers", "--watched", str(beat))
    monkeypatch.setattr("benchmarks.step_session.peer_model", lambda *_: 1 / 0)
    assert main([*SMOKE, *without, *quick, "--output", str(out)]) == 1
    report = json.loads(out.read_text())
    assert {row["name"]: row["attention"] for row in report["rows"]} == {"exact": "sdpa", "medium": "sdpa"}
    assert report["faults"] == {
        "high": "BackendUnavailable: was left out by --without",
        "diffusers": "ZeroDivisionError: division by zero",
    }
    assert "attention: sla_topk_50 no sign of life for 120 s" in report["passed"]["medium"]
    assert beat.read_text() == "sdpa" and "medium: attention: sla_topk_50 no sign" in capsys.readouterr().out


def test_a_lost_device_ends_a_watched_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat = tmp_path / "beat"

    def lost(*_: object) -> Any:
        raise torch.AcceleratorError("an illegal memory access\nmore")

    monkeypatch.setattr("benchmarks.step_session.Ready.few", lost)
    with pytest.raises(SystemExit) as ended:
        main([*SMOKE, "--lanes", "exact", "--watched", str(beat)])
    assert ended.value.code == LOST and beat.read_text() == "sdpa\nlost the device: an illegal memory access"


def test_a_phase_that_fails_leaves_the_figures_before_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.step_session.run_loop", lambda *_: [][0])
    assert main([*SMOKE, "--lanes", "exact", "--rounds", "1"]) == 1
    printed = capsys.readouterr().out
    assert "loop of exact: IndexError: list index out of range" in printed and "| fc2 | 3 |" in printed


def test_nothing_new_begins_after_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMOKE, "--lanes", "exact", "--seconds", "0"]) == 0
    printed = capsys.readouterr().out
    assert "left out: 2 of 3 rounds: 0 s were over" in printed and "left out: floor of exact" in printed


def test_ratios_are_of_one_round_each() -> None:
    assert ratio_of([6.0, 9.0, 4.0], [3.0, 3.0, 4.0]) == {"median": 2.0, "least": 1.0, "most": 3.0}
    assert ratio_of([6.0, 9.0], [3.0]) == {"median": 2.0, "least": 2.0, "most": 2.0}


def test_the_work_is_performance_md_s() -> None:
    work = Work.of(SIZES["published"], 37_810)
    assert work.linear == pytest.approx(1.457e15, rel=1e-3) and work.attention == pytest.approx(2.049e15, rel=1e-3)


def test_busy_is_what_is_covered() -> None:
    assert union_ms([(0, 1000), (500, 1500), (3000, 3500), (600, 700)]) == 2.0
    assert union_ms([]) == 0


def test_kernels_and_waits_are_counted() -> None:
    spans = [("gemm", 0, 300), ("copy", 300, 310), ("gemm", 310, 500)]
    events = [SimpleNamespace(name=n, time_range=SimpleNamespace(start=a, end=b)) for n, a, b in spans]
    first, second = kernels_of(events)
    assert (first.name, first.launches, first.ms) == ("gemm", 2, 0.49) and second.name == "copy"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for line in (7, 7, 9):
            warnings.warn_explicit(
                "called a synchronizing CUDA operation (Triggered ..)", UserWarning, "/x/a/b.py", line
            )
        warnings.warn_explicit("Synchronization debug mode is a prototype feature", UserWarning, "c.py", 1)
    assert waits_of(caught) == {"a/b.py:7": 2, "a/b.py:9": 1}


def test_a_call_that_overwrites_is_given_the_same_again() -> None:
    kept, x = torch.ones(3), torch.ones(3)
    seen: list[float] = []
    times = sustained(lambda: seen.append(float(x.mul_(2)[0])), CPU, lambda: x.copy_(kept))
    assert seen == [2.0] * 4 and len(times) == 3


def test_a_report_without_a_gpu_s_figures_is_told() -> None:
    report = {"rows": [], "parts": {}, "loops": {}, "growth": [], "faults": {"x": "y"}, "passed": {}, "left_out": []}
    assert "x: y" in table({**report, "asked": {"workload": "w"}, "rows_packed": 1})
    assert STEP == 4

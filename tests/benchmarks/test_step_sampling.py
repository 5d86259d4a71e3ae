"""Whole samplings of the benchmark of a step: what is counted, what is reused, and the peer's own walk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import step_sampling
from benchmarks.contract import read_contract
from benchmarks.step import main
from benchmarks.step_lanes import LANES, Lanes, Ready, lane_of
from benchmarks.step_peer import peer_model, peer_weights
from benchmarks.step_report import table
from benchmarks.step_sampling import GivenSteps, PeerWalk, StepTook, approximations, sampled, sampled_by_peer
from benchmarks.step_session import SIZES, error_of
from benchmarks.step_workload import Workload, workload_of
from h3runtime.core import Latents, StepReuse
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.rows import audio_latent, unpatchify
from h3runtime.engine.made_network import made_weights

CPU = torch.device("cpu")
SMALL = SIZES["small"]
SMOKE = ("--sizes", "small", "--workload", "smoke-320x192-22f", "--device", "cpu", "--rounds", "1", "--no-floor")
STEPS = 8


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return made_weights(SMALL, CPU)


@pytest.fixture(scope="module")
def given() -> Workload:
    """The smoke clip, four times smaller in each direction, in as many steps as let a rule reuse some."""
    contract = read_contract("smoke-320x192-22f").contract
    latents = contract.latents.model_copy(update={"video": (24, 2, 4, 6), "audio": (32, 2, 5)})
    made = workload_of(contract.model_copy(update={"latents": latents}), SMALL.text_dim, CPU)
    return replace(made, settings=replace(made.settings, steps=STEPS))


def ready(name: str, weights: dict[str, torch.Tensor], given: Workload, **changes: Any) -> Ready:
    return Lanes(SMALL, weights, CPU).ready(replace(LANES[name], **changes), given)


def run(lane: Ready, network: Any, reuse: StepReuse | None = None) -> tuple[Latents, list[int]]:
    reused: list[int] = []
    made = denoise(
        network,
        lane.given.layout,
        lane.given.text,
        (),
        (),
        lane.given.settings,
        device=CPU,
        dtype=torch.bfloat16,
        attention=lane.attention,
        reuse=reuse,
        on_step=lambda step: reused.append(step.index) if step.reused else None,
    )
    return made, reused


def test_lanes_reuse_and_the_peer_s_whole_loop_are_told_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    asked = ("--lanes", "high,reuse,sparse,medium", "--peer", "diffusers", "--steps", "0", "--share", "25")
    names = "medium@2+4+5,diffusers,sparse,reuse@2+4+5,medium@2+4+5,medium"
    order = ("--samplings", names, "--sampling-steps", str(STEPS), "--cache-threshold", "0")
    assert main([*SMOKE, *asked, *order, "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    found = report["samplings"]
    assert {name: (one["forwards"], one["skipped"]) for name, one in found.items()} == {
        "medium@2+4+5": ([5, 5], [[2, 4, 5]] * 2),
        "diffusers": ([8], [[]]),
        "sparse": ([8], [[]]),
        "reuse@2+4+5": ([5], [[2, 4, 5]]),
        "medium": ([8], [[]]),
    }
    (peer,) = (row for row in report["rows"] if row["name"] == "diffusers")
    rates = {row["name"]: (row["tflops"], row["ceiling_percent"]) for row in report["rows"]}
    # What leaves out keys does less than all of the work.
    assert rates["sparse"] == rates["medium"] == (None, None) and None not in rates["reuse"]
    forwards = [*peer["times_ms"], *report["peer_forwards_between_ms"]]
    assert len(forwards) == 1 + 4 and not found["diffusers"]["ratios"]
    by_forward = found["reuse@2+4+5"]["ratios"]["diffusers, 8 x median forward"]["median"]
    assert by_forward == pytest.approx(8 * sorted(forwards)[2] / found["reuse@2+4+5"]["ms"])
    whole = found["medium@2+4+5"]["ratios"]["diffusers, whole"]
    assert whole["least"] == pytest.approx(found["diffusers"]["ms"] / max(found["medium@2+4+5"]["walls_ms"]))
    first, later = (found["medium@2+4+5"]["took"][number]["attention"] for number in (0, 1))
    assert first["dispatches"] == {"sdpa": 3} and not found["medium@2+4+5"]["took"][2]["attention"]["dispatches"]
    assert list(later["kept_share"].values()) == [pytest.approx(0.25, abs=0.1)]
    printed = capsys.readouterr().out
    assert "| medium@2+4+5 | 2 |" in printed and "| 8 | 5 | 2, 4, 5 |" in printed
    assert "medium@2+4+5, approximated: products: fp8; attention: sla" in printed and "reused, as given" in printed
    assert "reuse@2+4+5, attention of steps 0, 1, 3, 6, 7: 3 sdpa" in printed


def test_a_forward_that_is_another_lane_s_is_timed_once(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert main([*SMOKE, "--lanes", "high,reuse", "--steps", "1", "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [row["name"] for row in report["rows"]] == ["high", "reuse"]
    assert report["rows"][0]["times_ms"] == report["rows"][1]["times_ms"] and list(report["loops"]) == ["high"]


def test_networks_of_the_same_products_are_one(weights: dict[str, torch.Tensor], given: Workload) -> None:
    lanes = Lanes(SMALL, weights, CPU)
    high, medium, exact = (lanes.ready(LANES[name], given) for name in ("high", "medium", "exact"))
    assert high.network is medium.network and exact.network is not high.network
    assert not high.is_twin(medium) and medium.is_twin(lanes.ready(LANES["sparse"], given))


def test_what_a_rule_reuses_is_told_and_counted(weights: dict[str, torch.Tensor], given: Workload) -> None:
    lane = ready("reuse", weights, given, reuse=StepReuse("easycache", 0.5))
    made = sampled(lane, CPU)
    assert made.skipped and made.forwards == STEPS - len(made.skipped)
    assert made.skipped == tuple(run(lane, lane.network, lane.lane.reuse)[1])
    assert all(made.steps[number].change is not None for number in made.skipped)
    assert sampled(ready("high", weights, given), CPU).skipped == ()


def test_given_steps_are_reused_as_the_rule_reuses_them(weights: dict[str, torch.Tensor], given: Workload) -> None:
    lane = ready("exact", weights, given)
    reuse = StepReuse("easycache", 0.5)
    wanted, reused = run(lane, lane.network, reuse)
    steps = GivenSteps(lane.network, reuse.forecast, given.settings, reused)
    found, _ = run(lane, steps, replace(reuse, threshold=0.0))
    assert reused and steps.reused == set(reused)
    assert torch.equal(found.video, wanted.video) and torch.equal(found.audio, wanted.audio)
    assert not torch.equal(run(lane, lane.network)[0].video, wanted.video)


def test_forwards_that_don_t_add_up_are_an_error(
    weights: dict[str, torch.Tensor], given: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = ready("reuse", weights, given, skipped=(3,))
    monkeypatch.setattr(step_sampling, "_took", lambda ms, *_: StepTook(ms))
    with pytest.raises(AssertionError, match="neither computed nor reused"):
        sampled(lane, CPU)


def test_the_peer_walks_as_we_do(weights: dict[str, torch.Tensor], given: Workload) -> None:
    lane = ready("exact", weights, replace(given, settings=replace(given.settings, sampler="euler")))
    model = peer_model(SMALL, peer_weights(weights), weights["rope.inv_freq"])
    walk, (wanted, _) = PeerWalk(model, given), run(lane, lane.network)
    with torch.no_grad():
        for number in range(STEPS):
            walk.take(number)
    made = unpatchify(walk.pictures[0], *given.video.shape[2:]), audio_latent(walk.sounds[0])
    assert error_of(made, (wanted.video, wanted.audio)) < 0.03
    assert sampled_by_peer(model, given, CPU).forwards == STEPS


def test_what_lanes_approximate(weights: dict[str, torch.Tensor], given: Workload) -> None:
    assert approximations(ready("exact", weights, given)) == []
    told = "; ".join(approximations(ready("medium", weights, given)))
    assert "products: fp8" in told and "easycache below 0.15, as it decides on random weights" in told
    other = StepReuse("h3_cache", 0.1)
    lane = lane_of("medium", 10, other)
    assert lane.attentions == ("sla8_topk_10", "sla_topk_10", *LANES["high"].attentions) and lane.reuse == other
    assert replace(lane, skipped=(3, 4)).likely_skips(given.settings) == 2
    assert lane_of("sparse", 10, other).attentions == lane.attentions[:2]
    assert lane_of("high", 10, other) == LANES["high"]


def test_what_can_t_be_sampled_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--lanes", "high", "--steps", "0", "--samplings", "medium,high", "--sampling-steps", "2")
    assert main([*SMOKE, *asked, "--seconds", "0"]) == 0
    printed = capsys.readouterr().out
    assert "left out: sampling of medium: there is no such" in printed
    assert "left out: sampling of high: 0 s were over" in printed
    for wrong, told in (
        ("medium@0", "names no steps from 1 on"),
        ("medium@", "names no steps from 1 on"),
        ("fast", "no lane or peer 'fast'"),
        ("sparse@3", "reuses nothing"),
    ):
        assert main([*SMOKE, *asked, "--samplings", wrong]) == 1
        assert told in capsys.readouterr().err
    assert main([*SMOKE, "--samplings", "medium@3", "--cache-mode", "first_block"]) == 1
    assert "first_block can't be told steps" in capsys.readouterr().err


def test_a_sampling_that_fails_costs_itself_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.step_session.sampled", lambda *_: [][0])
    assert main([*SMOKE, "--lanes", "high", "--steps", "0", "--samplings", "high"]) == 1
    assert "sampling of high: IndexError" in capsys.readouterr().out


def test_reports_of_before_have_no_samplings() -> None:
    report: dict[str, Any] = {
        "rows": [],
        "parts": {},
        "loops": {},
        "growth": [],
        "faults": {},
        "passed": {},
        "left_out": [],
    }
    assert "whole sampling" not in table({**report, "asked": {"workload": "w"}, "rows_packed": 1})

"""`h3runtime profile block`: the parts of a block, on the tiny model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.__main__ import main
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.cli.profile import TITLES, table
from h3runtime.denoiser.block_times import PARTS, Stopwatch, time_block
from h3runtime.denoiser.blocks import AttentionCall
from h3runtime.engine.block_profile import Shape
from h3runtime.engine.block_profile import profile as profiled
from h3runtime.errors import InvalidRequest
from h3runtime.settings import resolve
from tests.denoiser import tiny
from tests.tiny_set import tiny_paths

SMALL = ("--width", "64", "--height", "64", "--frames", "5", "--text-rows", "7", "--runs", "2", "--device", "cpu")
MADE = TransformerSizes(hidden=64, heads=2, head_dim=32, ffn=96, text_dim=48, rope_freqs=4)
"""As deep as the published model."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def profile(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["profile", "block", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_every_part_of_every_block_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, output = tiny_paths()["model_path"], tmp_path / "told.json"
    code, out, err = profile(capsys, path, *SMALL, "--blocks", "1,0", "--json", "--output", output, "--fused", "torch")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert json.loads(output.read_text()) == report
    assert [found["block"] for found in report["blocks"]] == [1, 0]
    assert (report["packed_rows"], report["runs"], report["fused"]) == (7 + 2 * 8 + 2 * 2 * 2, 2, "torch")
    for found in report["blocks"]:
        assert tuple(found["parts"]) == PARTS == tuple(TITLES)
        for part in found["parts"].values():
            assert 0 < part["least_ms"] <= part["ms"] <= part["most_ms"]


def test_the_table_has_a_line_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = profile(capsys, tiny_paths()["model_path"], *SMALL)
    assert code == 0
    head, columns, *lines = out.splitlines()
    assert "31 rows; attention sdpa" in head and "fused cpu" in head
    assert columns.split() == ["block", "0", "block", "1", "block", "2"] and len(lines) == len(PARTS) == 9
    assert [line.startswith(title) for line, title in zip(lines, TITLES.values(), strict=True)] == [True] * 9
    assert lines[-1].endswith("100.0%")


def test_blocks_of_a_transformer_that_is_made_up() -> None:
    """As large as published they'd take seconds: here small ones, asked for as the command asks."""
    settings = resolve({"device": "cpu", "linear": "fp8"}, None)
    report = profiled(MADE, settings, Shape(64, 64, 5, 7), (), 1)
    assert report["checkpoint"] == "made up" and report["linear"] == "fp8" and report["packed_rows"] == 31
    assert [found["block"] for found in report["blocks"]] == [0, 24, 49]
    assert all(tuple(found["parts"]) == PARTS for found in report["blocks"])
    with pytest.raises(InvalidRequest, match="no block 50: the model has 50"):
        profiled(MADE, settings, Shape(64, 64, 5, 7), (50,), 1)


def test_a_checkpoint_is_not_made_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = profile(capsys, tmp_path / "x.safetensors", *SMALL, "--made-up")
    assert code == 1 and "made-up: " in err and "is a checkpoint" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--blocks", "0,3"), "blocks: there is no block 3: the model has 3"),
        (("--blocks", "-1"), "blocks: there is no block -1"),
        (("--blocks", "all"), "blocks: 'all' is no list of numbers"),
        (("--width", "100", "--frames", "6"), "width: 100 is no side of a clip; frames: no clip has 6 frames"),
        (("--runs", "0"), "runs: 0 is too few"),
        (("--fused", "triton"), "fused: triton can't run here: needs a CUDA device, not cpu"),
        (("--fused", "cuda"), "fused: there is no backend 'cuda'"),
    ],
)
def test_what_can_t_be_timed_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    code, out, err = profile(capsys, tiny_paths()["model_path"], *SMALL, *arguments)
    assert (code, out) == (1, "") and told in err


def test_a_timed_block_computes_what_it_computes_otherwise() -> None:
    """And leaves nothing behind: hooks of one call would be called by the next."""
    packed, model = tiny.layout(), tiny.dit()
    prepared = tiny.prepare(model, packed, (0.9, 0.0))
    clock = model.clock(prepared, 0.9)
    call = AttentionCall(model.attention, packed, 0, model.producers, prepared.rotary)
    table = prepared.modulation.at(clock.timeline).block(0)
    h = tiny.noise(packed.rows, model.config.hidden).bfloat16()
    timed, plain = h.clone(), h.clone()
    model.requires_grad_(False)
    found = time_block(model.blocks[0], timed, table, clock.rows, call, Stopwatch(torch.device("cpu")))
    model.blocks[0](plain, table, clock.rows, call)
    assert torch.equal(timed, plain) and tuple(found) == PARTS
    assert sum(found[part] for part in PARTS[:-1]) <= found["total"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_shares_are_of_the_whole_block() -> None:
    parts: dict[str, dict[str, Any]] = {p: {"ms": 1.0, "least_ms": 1, "most_ms": 2, "share": 0.1} for p in PARTS}
    report = {"blocks": [{"block": 24, "parts": parts}], "runs": 3, "packed_rows": 9, "width": 1, "height": 2}
    report |= dict.fromkeys(("checkpoint", "device", "frames", "attention", "linear", "fused"), "x")
    assert "1.000 (1.000, 2.000) 10.0%" in table(report)

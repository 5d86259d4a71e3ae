"""The table of the video VAE, at a small size on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.vae import SIZES, made_vae, main, peer_of

SMALL = ("--sizes", "small", "--width", "32", "--height", "32", "--frames", "22", "--runs", "1", "--device", "cpu")


def test_it_measures_every_way_beside_the_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert main([*SMALL, "--peer", "diffusers", "--output", str(out)]) == 0
    rows = {(row["half"], row["name"]): row for row in json.loads(out.read_text())["rows"]}
    assert rows.keys() == {
        (half, name) for half in ("decode", "encode") for name in ("batched", "unbatched", "diffusers")
    }
    for (half, name), row in rows.items():
        assert 0 < row["least_ms"] <= row["ms"] <= row["most_ms"] and row["ratio"] > 0
        assert row["chunk_ms"] == pytest.approx(row["ms"] / 2)
        assert row["frames_per_second"] == pytest.approx(22e3 / row["ms"])
        assert (row["error"] is None) == (half == "decode")
        # The same picture: bytes that lie between two may fall to either side.
        assert row["psnr"] is None or (name == "diffusers" and row["psnr"] > 70)
        assert row["error"] is None or row["error"] < 1e-5
    assert "| decode | batched |" in capsys.readouterr().out


def test_a_half_and_some_ways_alone(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert main([*SMALL, "--halves", "decode", "--ways", "batched", "--output", str(out)]) == 0
    assert [(row["half"], row["name"]) for row in json.loads(out.read_text())["rows"]] == [("decode", "batched")]


def test_the_peer_keeps_in_fp32_what_its_own_loading_keeps() -> None:
    vae = made_vae(SIZES["small"], torch.float16, torch.device("cpu"))
    kept = peer_of(vae, SIZES["small"], torch.float16)
    assert {kept.decoder.transformer_blocks[0].norm1.weight.dtype, kept.encoder.conv_in.weight.dtype} == {torch.float32}
    assert kept.decoder.transformer_blocks[0].attn.to_q.weight.dtype == torch.float16
    cast = peer_of(vae, SIZES["small"], torch.float16, cast=True)
    assert {parameter.dtype for parameter in cast.parameters()} == {torch.float16}


@pytest.mark.parametrize(("flag", "value"), [("--frames", "24"), ("--width", "40"), ("--halves", "middle")])
def test_sizes_that_no_clip_has_are_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, flag, value]) == 1
    assert flag.removeprefix("--") in capsys.readouterr().err

"""`h3runtime synth`: headers of the published files, what it prints, what it refuses."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from h3runtime.__main__ import main
from tests.parity.fixture import DIRECTORY

FORMATS = ("nvfp4", "int8_convrot", "fp8_scaled", "bf16")
BYTE, NEAR = 0, 8192
SIZES = {
    "minimax_h3_fl2va_pruned_bf16": (40_225_724_176, BYTE),
    "minimax_h3_fl2va_pruned_int8_convrot": (20_970_379_616, BYTE),
    "minimax_h3_fl2va_pruned_nvfp4": (12_528_636_800, BYTE),
    "minimax_h3_fl2va_pruned_fp8_scaled": (20_958_205_608, NEAR),
    "minimax_h3_fl2va_bf16": (66_280_487_368, NEAR),
    "minimax_h3_fl2va_int8_convrot": (34_038_892_334, NEAR),
    "qwen3vl_32b_minimax_h3_nvfp4_awq": (15_687_142_551, BYTE),
    "qwen3vl_32b_minimax_h3_int8_convrot": (27_141_342_152, NEAR),
    "qwen3vl_32b_minimax_h3_bf16": (51_506_295_256, NEAR),
    "minimax_h3_video_vae_fp16": (5_207_808_496, NEAR),
    "minimax_h3_audio_vae_fp32": (605_254_808, NEAR),
}
"""checkpoint-formats §1.1, §1.2. Nobody published the bytes of an unpruned nvfp4 or fp8_scaled."""
CENSUS = {
    "minimax_h3_fl2va_pruned_int8_convrot": {"I8": 200, "BF16": 220, "F16": 102, "F32": 210, "U8": 200},
    "minimax_h3_fl2va_pruned_nvfp4": {"U8": 400, "F8_E4M3": 200, "BF16": 220, "F16": 102, "F32": 210},
    "minimax_h3_fl2va_pruned_bf16": {"BF16": 522, "F32": 10},
    "qwen3vl_32b_minimax_h3_nvfp4_awq": {"U8": 701, "F8_E4M3": 350, "F32": 351, "I8": 1, "BF16": 651},
}
"""checkpoint-formats §2.6, §5.1."""
TENSORS = {
    "minimax_h3_fl2va_nvfp4": 1051,
    "minimax_h3_fl2va_int8_convrot": 1035,
    "minimax_h3_fl2va_pruned_fp8_scaled": 1082,
}
SIDECARS = ("weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale", "comfy_quant")


def synth(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["synth", *map(str, arguments)]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    facts: dict[str, Any] = json.loads(out)
    return facts


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["synth", *map(str, arguments)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) <= 2
    return captured.err


def header(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors and metadata of a file that is a header and nothing else."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert len(content) == 8 + length
    table = json.loads(content[8:])
    return table, table.pop("__metadata__", {})


def recorded(name: str) -> dict[str, list[int]]:
    """Names and shapes of the real model."""
    path = DIRECTORY / "full_size_keys.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    table = json.loads(path.read_text())
    if "qwen" in name:
        found = table["text_encoder"]
    elif "vae" in name:
        found = table["video_vae" if "video" in name else "audio_vae"]
    elif "pruned" in name:
        found = {
            n: v
            for n, v in (table["dit"] | table["dit_pruned_curve"]).items()
            if n not in table["dit_pruned_curve_absent"]
        }
    else:
        found = table["dit"]
    return {n: shape for n, (shape, _) in found.items()}


@pytest.mark.parametrize("unpruned", [(), ("--unpruned",)], ids=["pruned", "full"])
@pytest.mark.parametrize("kind", FORMATS)
def test_headers_are_the_published_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, unpruned: tuple[str, ...]
) -> None:
    facts = synth(capsys, tmp_path, "--format", kind, "--full-size", "--dry-run", *unpruned)
    assert facts["dry_run"] and facts["bytes"] == sum(file["bytes"] for file in facts["files"])
    assert {file["name"] for file in facts["files"]} == {path.name for path in tmp_path.iterdir()}
    for file in facts["files"]:
        name = file["name"].removesuffix(".safetensors")
        table, metadata = header(tmp_path / file["name"])
        whole = (tmp_path / file["name"]).stat().st_size + max(entry["data_offsets"][1] for entry in table.values())
        assert whole == file["bytes"] and len(table) == file["tensors"] == TENSORS.get(name, len(table))
        published, off = SIZES.get(name, (whole, BYTE))
        assert abs(whole - published) <= off, name
        assert metadata in ({}, {"format": "pt"}) or name == "minimax_h3_fl2va_nvfp4"
        if name in CENSUS:
            assert Counter(entry["dtype"] for entry in table.values()) == CENSUS[name]
        same_names_and_shapes(table, recorded(name))


def same_names_and_shapes(table: dict[str, Any], wanted: dict[str, list[int]]) -> None:
    extra = table.keys() - wanted.keys()
    assert not wanted.keys() - table.keys() and all(name.rpartition(".")[2] in SIDECARS for name in extra)
    for name, shape in wanted.items():
        packed = table[name]["dtype"] == "U8"
        assert table[name]["shape"] == ([shape[0], shape[1] // 2] if packed else shape), name


def test_a_tiny_set_is_told_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    facts = synth(capsys, tmp_path / "set", "--format", "nvfp4", "--seed", "7")
    assert facts["seed"] == "7" and facts["pruned"] and not facts["full_size"]
    assert facts["bytes"] == sum(p.stat().st_size for p in (tmp_path / "set").glob("*.safetensors"))
    assert facts["seconds"] > 0 and facts["rate"] > 0 and Path(facts["env"]).is_file()
    assert all(len(file["sha256"]) == 64 for file in facts["files"])
    err = refused(capsys, tmp_path / "set", "--format", "nvfp4")
    assert "exists" in err and "--overwrite" in err
    assert main(["synth", str(tmp_path / "set"), "--format", "nvfp4", "--overwrite", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("partition", ["ref2va", "both"])
def test_other_partitions_are_written_as_ordered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, partition: str
) -> None:
    ordered = ("--format", "nvfp4", "--full-size", "--dry-run", "--partition", partition)
    facts = synth(capsys, tmp_path, *ordered)
    transformers = [file for file in facts["files"] if "2va" in file["name"]]
    assert facts["partitions"] == (["fl2va", "ref2va"] if partition == "both" else ["ref2va"])
    assert [file["name"].split("_")[2] for file in transformers] == facts["partitions"]
    # Both are published in the same size (checkpoint-formats §1.1).
    assert {file["bytes"] for file in transformers} == {SIZES["minimax_h3_fl2va_pruned_nvfp4"][0]}


@pytest.mark.parametrize("seed", ["-1", "x", "18446744073709551616", "1.5"])
def test_a_seed_out_of_range_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, seed: str) -> None:
    assert "2^64-1" in refused(capsys, tmp_path / "set", "--format", "bf16", f"--seed={seed}")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["synth", str(tmp_path), "--format", "gguf"])
    assert "fp8_scaled" in capsys.readouterr().err


ENDLESS = """
import pathlib, sys, time
from contextlib import contextmanager
from h3runtime.checkpoint.synthetic import staging

if sys.argv.pop(1) == "made":
    made = pathlib.Path.mkdir
    def mkdir(path, *given, **named):
        made(path, *given, **named)
        if path.name.startswith(".synth-"):
            time.sleep(600)
    pathlib.Path.mkdir = mkdir
else:
    @contextmanager
    def held(stage):
        time.sleep(600)
        yield True
    staging._held = held
from h3runtime.__main__ import main
sys.exit(main())
"""
"""The command, for as long as it takes where the folder has just been made, or in the middle of its work."""


@pytest.mark.parametrize("moment", ["made", "held"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-c", ENDLESS, moment, "synth", str(tmp_path / "set"), "--format", "bf16"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while not list(tmp_path.rglob(".synth-*")) and time.monotonic() < until:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []

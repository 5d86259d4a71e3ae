"""`h3runtime plan` from its arguments to what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from h3runtime.__main__ import main
from h3runtime.engine import places
from h3runtime.engine.memory_budget import DeviceMemory
from h3runtime.observe.control_groups import LimitedGroup
from h3runtime.settings import GIB
from tests.tiny_set import tiny_paths

KEYS = [
    *("device", "title", "architecture", "memory", "residency", "linear", "attention"),
    *("components", "weights_bytes", "allocated_bytes", "other", "residencies"),
]


def flags() -> list[str]:
    """The tiny set, named as files are."""
    return [word for name, path in tiny_paths().items() for word in (f"--{name.replace('_', '-')}", str(path))]


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["plan", *arguments]) == code
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 1
    said = capsys.readouterr()
    assert not said.out
    return said.err


def test_one_object_has_every_byte(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "--device", "spark", "--json", *flags(), "--size", "64x64x22"))
    assert list(found) == KEYS
    assert (found["device"], found["architecture"], found["memory"]["kind"]) == ("gb10", "SM 12.1", "integrated")
    assert found["weights_bytes"] == sum(part["resident_bytes"] for part in found["components"])
    assert [part["name"] for part in found["components"]][:3] == [
        "transformer fl2va",
        "transformer ref2va",
        "text encoder",
    ]
    assert all(Path(part["file"]).suffix == ".safetensors" for part in found["components"])
    assert found["residency"] == "all" and found["residencies"]["encoder_host"]["usable"] is False
    (clip,) = found["residencies"]["all"]["clips"]
    assert (clip["width"], clip["height"], clip["frames"], clip["fits"]) == (64, 64, 22, True)
    assert clip["peak_bytes"] == clip["memory"]["total_bytes"]


def test_a_person_reads_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "--device", "5090", *flags(), "--size", "64x64x22", "--size", "128x96x39")
    for word in ("GeForce RTX 5090", "31.33 GiB", "text encoder", "encoder_disk", "64x64, 22 frames", "128x96, 39"):
        assert word in said
    assert said.rstrip().endswith("H3_RESIDENCY=all; every clip fits")
    assert max(map(len, said.splitlines())) < 400


def test_what_would_be_refused_is_told_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """With the server's own words."""
    said = told(capsys, "--device", "gb10", *flags(), "--system-reserve-bytes", str(2**37), code=1)
    assert "the weights don't fit into memory" in said and "128.00 GiB" in said
    assert "a server refuses to start" in said


def test_this_machine_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "--json", *flags(), "--size", "64x64x5"))
    assert found["device"] == "here" and found["memory"]["sources"]["total"].startswith("as it is now")


def test_a_container_s_limit_is_told_and_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = DeviceMemory("integrated", 119 * GIB, 115 * GIB, groups=(LimitedGroup(64 * GIB, 2 * GIB),))
    monkeypatch.setattr(places, "memory_of", lambda _: there)
    arguments = ("--device", "here", *flags(), "--size", "64x64x5")
    assert "64.00 GiB of a control group, 62.00 GiB of it left" in told(capsys, *arguments)
    found = json.loads(told(capsys, *arguments, "--json"))["memory"]
    assert (found["loadable_bytes"], found["limits"]) == (62 * GIB, [{"bytes": 64 * GIB, "left_bytes": 62 * GIB}])


def test_words_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no machine 'b300'" in refusal(capsys, "--device", "b300")
    assert "100x64x22 is no shape" in refusal(capsys, "--size", "100x64x22")
    assert "no backend 'fp9'" in refusal(capsys, "--vae-linear", "fp9")
    assert "64x64 is no shape" in refusal(capsys, "--size", "64x64")
    said = refusal(capsys, *flags(), "--format", "bf16", "--unpruned")
    assert "--format" in said and "--unpruned" in said and "--video-vae" not in said


def test_a_published_set_needs_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = ("--format", "int8_convrot", "--partition", "ref2va", "--size", "64x64x5")
    found = json.loads(told(capsys, "--device", "h200", *wanted, "--json"))
    sizes = {part["file"]: part["file_bytes"] for part in found["components"]}
    assert sizes["minimax_h3_ref2va_pruned_int8_convrot.safetensors"] == 20_970_379_616
    assert found["linear"]["name"] == "resident_bf16" and not list(tmp_path.iterdir())

"""The embedded model by its commands: `inspect` tells it by its name, `synth --nano` puts it into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from h3runtime.__main__ import main
from h3runtime.checkpoint.embedded.listing import read_listing
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.embedded.sets import embedded_set

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        return main(list(map(str, arguments))), *capsys.readouterr()

    return run


def told(answer: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = answer
    assert code == 0, err
    facts: dict[str, Any] = json.loads(out)
    return facts


def test_inspect_tells_it_by_its_name(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = embedded_set(tmp_path, "fp8_scaled").transformer
    found = told(command("inspect", path, "--json"))
    assert (found["model"], found["synthetic"], found["qkv_decision"]["how"]) == ("h3-nano", False, "construction")
    assert "minimax_h3: transformer (h3-nano, a trained miniature)" in command("inspect", path)[1]


def test_it_comes_into_a_folder_of_one_s_own(command: Command, tmp_path: Path) -> None:
    ask = ("synth", tmp_path / "set", "--format", "int8_convrot", "--nano")
    facts = told(command(*ask, "--partition", "both"))
    listed = read_listing(FOLDER).sets["int8_convrot"]
    assert {file["name"]: file["sha256"] for file in facts["files"]} == listed
    assert (facts["model"], facts["seed"], facts["partitions"]) == ("h3-nano", None, ["fl2va", "ref2va"])
    assert facts["bytes"] == sum((tmp_path / "set" / name).stat().st_size for name in listed)
    names = {path.name for path in (tmp_path / "set").iterdir()}
    assert names == {*listed, "tokenizer", "h3.env", "SHA256SUMS"}
    env = dict(line.split("=", 1) for line in (tmp_path / "set" / "h3.env").read_text().splitlines())
    assert len(env) == 6 and all(Path(path).exists() for path in env.values())
    code, out, err = command(*ask)
    assert (code, out) == (1, "") and "exists" in err
    assert told(command(*ask, "--overwrite"))


@pytest.mark.parametrize("flag", ["--unpruned", "--full-size", "--dry-run", "--loras", "--seed=7"])
def test_only_random_values_have_a_seed_and_other_sizes(command: Command, tmp_path: Path, flag: str) -> None:
    code, out, err = command("synth", tmp_path / "set", "--format", "bf16", "--nano", flag)
    assert (code, out) == (1, "") and flag.partition("=")[0] in err and "no meaning with --nano" in err
    assert not (tmp_path / "set").exists()

"""Whole requests through HTTP, with an engine that has no model."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import request
from benchmarks.request import PROMPT, Asked, Made, main, table
from benchmarks.request_peer import GIB, Taken, _parser, most, require_room

SIZES = Asked(width=64, height=64, frames=22, steps=2, runs=0)
TINY = (
    "--width",
    "64",
    "--height",
    "64",
    "--frames",
    "22",
    "--steps",
    "2",
    "--engine",
    "tests.fake_engine:create_for_serve",
)


def test_cold_first_and_warm_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert main([*TINY, "--runs", "2", "--output", str(out), "--prompt-cache-bytes", "0"]) == 0
    report = json.loads(out.read_text())
    assert report["cold_seconds"] > 0
    assert {name: len(made) for name, made in report["clips"].items()} == {"first": 1, "warm": 2, "fresh": 1}
    for made in report["clips"].values():
        for clip in made:
            assert clip["bytes"] > 0 and "sampling" in clip["stages"]
            assert clip["total"] == pytest.approx(clip["rest"] + sum(clip["stages"].values()))
    printed = capsys.readouterr()
    assert "| warm | 2 |" in printed.out and "cold start: " in printed.out
    # Before the server, and after each of four clips: who is ended in between leaves what there is.
    assert printed.err.count(f"{out}: written") == 5


def test_a_setting_without_a_value_is_told() -> None:
    with pytest.raises(SystemExit, match="pairs"):
        main([*TINY, "--prompt-cache-bytes"])


def test_prompts_of_a_made_set_have_the_rows_of_the_contract() -> None:
    asked = replace(SIZES, prompt_rows=100)
    prompts = [asked.prompt(PROMPT, number) for number in range(3)]
    assert {len(prompt) for prompt in prompts} == {100} and len(set(prompts)) == 3
    assert SIZES.prompt(PROMPT) == PROMPT


def test_a_ratio_is_of_the_fresh_clips_and_the_peers() -> None:
    stages = {"sampling": 1.0}
    ours = {"first": [4.0], "warm": [], "fresh": [2.0, 2.5, 3.0]}
    clips = {name: [asdict(Made(t, stages, 0.1, 1)) for t in totals] for name, totals in ours.items()}
    peer = {"clips": [{"total": 5.0, "stages": stages | {"mux": 1.0}}]}
    printed = table({"clips": clips, "cold_seconds": 9.0, "peer": peer})
    assert "ratio of a fresh clip: 2.00x (1.67..2.50)" in printed and "| warm |" not in printed
    assert "| diffusers | 1 | 5.000 | 5.000..5.000 | 1.000 | 1.000 | 0.000 |" in printed


def test_the_peer_s_uncounted_clip_may_be_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def ended(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        (tmp_path / "peer.json").write_text("{}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", ended)
    for warm in (None, "320x192"):
        assert request.peer_clips(SIZES, 1, tmp_path, tiny=True, warm_size=warm) == {}
    sizes = [_parser().parse_args(command[2:]).warm_size for command in commands]
    assert sizes == [None, (320, 192)]
    with pytest.raises(SystemExit):
        _parser().parse_args([*commands[0][2:], "--warm-size", "320"])


def test_a_peer_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match="diffusers"):
        request.peer_clips(SIZES, 1, tmp_path, tiny=True)


def test_a_peer_that_doesnt_fit_is_told_before_it_is_made() -> None:
    sizes = {"vae": (27, 5), "transformer": (76, 62), "text_encoder": (51, 50)}
    parts = {name: Taken(making * GIB, kept * GIB) for name, (making, kept) in sizes.items()}
    assert most(parts.values()) == 118 * GIB and most(reversed(parts.values())) == 139 * GIB
    assert require_room(parts, 37_810, 139 * GIB).endswith("117.0 held, 123.3 while it runs")
    with pytest.raises(RuntimeError, match="are free"):
        require_room(parts, 37_810, 120 * GIB)

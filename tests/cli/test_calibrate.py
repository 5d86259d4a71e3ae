"""`h3runtime calibrate`: what it refuses, and a whole run of fewer clips than the command takes."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from h3runtime.__main__ import main
from h3runtime.cli.calibrate import _usual_size
from h3runtime.cli.calibration.outlook import View
from h3runtime.cli.calibration.prompts import read_prompts
from h3runtime.cli.calibration.running import LOCK, UNFINISHED, Asked, Calibration
from h3runtime.cli.calibration.size import Size
from h3runtime.cli.generation.judging import judge_with_engine, rule_on, settled
from h3runtime.core import EngineFacts, SamplerSettings
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import InvalidRequest
from h3runtime.quality.evidence import Least
from h3runtime.quality.levels import LEVELS
from h3runtime.quality.shelf import FOLDER, Shelf
from h3runtime.settings import Settings

PROMPTS = "a red ball moves right\na blue box moves up\n"
MANY = "".join(f"a red ball, {index}\n" for index in range(16))


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        (PROMPTS, [], "16 or more"),
        (MANY, ["--seeds", "1"], "2..1000"),
        (MANY, ["--size", "64x64"], "WIDTHxHEIGHTxFRAMES"),
        ("a ball\n" * 16, [], "the same entry twice"),
        ("[1" + ", 2" * 15 + "]", [], "is no text and no request"),
        ("[", [], "can't be read"),
        (json.dumps([{"prompt": f"{i}", "seed": 1} for i in range(16)]), [], "is set by the calibration"),
        (MANY, ["--size", "64x64x6"], "frames"),
        (MANY, ["--steps", "0", "--size", "64x64x5"], "steps"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    text: str, more: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts").write_text(text)
    asked = ["calibrate", "--prompts", str(tmp_path / "prompts"), "--data-dir", str(tmp_path / "data"), *more]
    assert main(asked) == 1
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) <= 2


def test_a_whole_run(tmp_path: Path) -> None:
    """Weights loaded for INT8 can't be exact: both kinds of clips have engines of their own."""
    (tmp_path / "prompts").write_text(PROMPTS)
    settings = Settings(device="cpu", linear="int8", data_dir=tmp_path)
    prompts = read_prompts(tmp_path / "prompts", 2)
    asked = Asked(prompts, (Size(64, 64, 5),), SamplerSettings(steps=2), (LEVELS["high"],), 1)
    seen: list[View] = []
    rows: list[object] = []
    loaded: list[EngineFacts] = []

    def load(settings: Settings, partition: str) -> ResidentEngine:
        engine = ResidentEngine(settings, 1, warm_up=False, partitions=(partition,))
        engine.load(lambda _: None)
        loaded.append(engine.facts())
        return engine

    (row,) = Calibration(asked, settings, load, lambda: False, seen.append, rows.append).run()
    assert row["level"] == "high" and row["evidence"]["choice"]["linear"] == "int8"
    assert 0.97 <= row["evidence"]["ssim"]["bound"] < 1 and row["evidence"]["time_ratio"] > 0
    # Both clips of the only candidate are made when it is tried, so that nothing is left to prove.
    assert list(dict.fromkeys(view.what for view in seen)) == ["exact", "high: trying int8 sdpa"] and rows == [row]
    assert [path.name for path in (tmp_path / "quality" / "unfinished").iterdir()] == [LOCK]

    shelf = Shelf(tmp_path).held
    assert "2 prompts and 1 seeds" in shelf.faults[0]
    # The package's own evidence is of the embedded model as it is: a retrained one has to be measured anew.
    assert shelf.of("high", loaded[1])
    assert [facts.linear.default for facts in loaded] == ["int8", "resident_bf16", "int8"]
    facts, held = loaded[-1], Shelf(tmp_path, least=Least(2, 1)).held
    request = {"prompt": "a green ball", "width": 64, "height": 64, "frames": 5, "steps": 3, "quality": "high"}
    ruling = rule_on(request, tmp_path, tmp_path / "inputs", settings)
    judge_with_engine([ruling], facts, is_chain=False, held=held)
    spec = settled(ruling.spec(tmp_path / "clip.mp4", tmp_path), ruling, facts, held)
    assert (spec.attention, spec.linear, spec.reuse) == ("sdpa", "int8", None)
    assert spec.evidence is not None and spec.evidence["id"] == row["evidence"]["id"]
    with pytest.raises(InvalidRequest, match=r"h3runtime calibrate .* --level high --size 64x64x5 --steps 3"):
        judge_with_engine([ruling], facts, is_chain=False)


def test_what_is_found_is_told_level_by_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole command: 32 exact clips, and nothing but these to choose from."""
    (tmp_path / "prompts").write_text(MANY)
    tried = ["--try-linear", "resident_bf16", "--try-attention", "sdpa", "--try-reuse", "none"]
    asked = ["calibrate", "--prompts", str(tmp_path / "prompts"), "--data-dir", str(tmp_path), "--device", "cpu"]
    assert main([*asked, "--size", "64x64x5", "--steps", "1", "--level", "low", "--level", "high", *tried]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)["evidence"]
    assert [(row["level"], row["evidence"]["time_ratio"]) for row in found] == [("high", 1.0), ("low", 1.0)]
    lines = [line for line in told.err.splitlines() if line.startswith("64x64x5: ")]
    assert lines[0].startswith("64x64x5: high is resident_bf16 sdpa, 1.00 times as fast as exact; SSIM 1.0000")
    shelf = Shelf(tmp_path).held
    assert {evidence.level for evidence in shelf.own} == {"high", "low"} and shelf.faults == ()


def test_the_usual_size_is_what_the_model_was_made_for() -> None:
    assert _usual_size(Settings()) == "192x192x39"
    assert _usual_size(Settings(model_path=Path("h3.safetensors"))) == "1344x768x124"


def test_a_candidate_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts").write_text(MANY)
    asked = ["calibrate", "--prompts", str(tmp_path / "prompts"), "--data-dir", str(tmp_path), "--size", "64x64x5"]
    assert main([*asked, "--device", "cpu", "--try-linear", "fp8", "--try-attention", "fa4"]) == 1
    error = capsys.readouterr().err
    assert "try_linear: fp8: the weights were loaded for" in error and "try_attention: fa4: needs a CUDA" in error


def test_a_second_run_on_a_data_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts").write_text(MANY)
    folder = tmp_path / FOLDER / UNFINISHED
    folder.mkdir(parents=True)
    with (folder / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["calibrate", "--prompts", str(tmp_path / "prompts"), "--data-dir", str(tmp_path)]) == 1
    assert "another calibration uses it" in capsys.readouterr().err

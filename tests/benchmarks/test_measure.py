"""`measure.py`: a result that says what ran, made by the real engine, and refusals before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import compare, measure
from benchmarks.contract import CONTRACTS, parse
from benchmarks.machine import processor, this_runtime
from benchmarks.record import approximations
from benchmarks.result import Result
from benchmarks.workload import fit_prompt
from h3runtime import __version__
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import BackendChoice, Clip, EngineFacts
from h3runtime.engine.paths import model_paths
from h3runtime.errors import InvalidRequest
from h3runtime.settings import Settings

SMOKE = "smoke-320x192-22f"
TINY = "tiny-64x64-5f"


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """A folder with the smallest workload that there is."""
    text = json.loads((CONTRACTS / f"{SMOKE}.json").read_text())
    text |= {"name": TINY, "width": 64, "height": 64, "frames": 5}
    text["latents"] = {"video": [24, 2, 4, 4], "audio": [32, 2, 8]}
    text["rows"] |= {"video": 8, "audio": 16, "total": 124}
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / f"{TINY}.json").write_text(json.dumps(text))
    return folder


def test_a_measured_result_is_what_its_contract_says(
    tmp_path: Path, contracts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "R.json"
    flags = ["--contracts", str(contracts), "--device", "cpu", "--data-dir", str(tmp_path / "data")]
    assert measure.main(["--contract", TINY, "--output", str(output), "--runs", "4", *flags]) == 0
    assert compare.main(["--result", str(output), "--contracts", str(contracts)]) == 0
    assert "124 (100 text, 0 references, 16 audio, 8 video), 2 forwards" in capsys.readouterr().out
    result = parse(Result, output.read_bytes(), output)
    assert (result.repeats, result.run.warm_up_runs, result.approximations) == (4, 1, ())
    assert (result.precision.transformer, result.precision.compute) == ("nvfp4", "bfloat16")
    assert [file.component for file in result.checkpoints] == ["transformer", "text_encoder", "video_vae", "audio_vae"]
    assert not any(file.synthetic for file in result.checkpoints)
    stages = ("conditioning", "sampling", "video_decode", "audio_decode", "mux")
    for index, whole in enumerate(result.samples.end_to_end):
        assert sum(result.samples.of(stage)[index] for stage in stages) <= whole
    # Encoding a hundred rows anew takes longer than finding them.
    assert min(result.samples.conditioning) > 1e-3
    assert result.start.cold_start_seconds > result.start.load_seconds > 0
    assert result.peaks.host_bytes > 2**26 and result.peaks.device_bytes is None
    assert measure.main(["--contract", TINY, "--output", str(output), *flags]) == 1
    assert "R.json exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--contract", "none"], "none.json: No such file"),
        (["--contract", SMOKE, "--output", "/not/there/R.json"], "is not a folder"),
        (["--contract", SMOKE, "--device", "tpu"], "tpu is no device"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert measure.main(["--output", str(tmp_path / "R.json"), *arguments]) == 1
    err = capsys.readouterr().err
    assert told in err and err.count("\n") <= 2
    assert list(tmp_path.iterdir()) == []


def test_references_are_made_and_their_rows_counted(tmp_path: Path, contracts: Path) -> None:
    text = json.loads((contracts / f"{TINY}.json").read_text())
    picture, sound = {"type": "image", "width": 96, "height": 64}, {"type": "audio", "seconds": 2.0}
    clip = {"type": "video", "width": 64, "height": 96, "seconds": 2.0, "sound": True}
    text |= {"name": "tiny-ref2va", "task": "ref2va", "references": [picture, clip, sound]}
    text["rows"] |= {"references": None}
    (contracts / "tiny-ref2va.json").write_text(json.dumps(text))
    output = tmp_path / "R.json"
    flags = ["--contracts", str(contracts), "--device", "cpu", "--data-dir", str(tmp_path / "data"), "--runs", "1"]
    assert measure.main(["--contract", "tiny-ref2va", "--output", str(output), *flags]) == 0
    # A picture of 64x64, a clip of 5 frames at 64x96, its track and the lone sound of 2 s.
    packed = 2 * 2 + 2 * 2 * 3 + 2 * 80 + 2 * 80
    tokenizer = PromptTokenizer.from_folder(model_paths(Settings(device="cpu", data_dir=tmp_path)).tokenizer)
    told = ("<Picture 1>: ", "<Audio 1>: ", "<Video 1>: ", "<0.0 seconds>", "<Audio 2>: ")
    shown = sum(len(tokenizer.encode(words)) for words in told)
    rows = parse(Result, output.read_bytes(), output).run.rows
    assert (rows.text, rows.references) == (100, packed + shown + (4 + 2) + (6 + 2))


@settings(max_examples=40)
@given(st.text(min_size=1, max_size=80), st.integers(1, 60))
def test_a_prompt_is_cut_or_repeated_to_its_rows(prompt: str, rows: int) -> None:
    fitted = fit_prompt(prompt, rows, len)
    assert len(fitted) == rows
    assert (prompt + " ").startswith(fitted[: len(prompt) + 1])


def test_a_prompt_that_fits_is_left_alone() -> None:
    assert fit_prompt("one two three", 3, lambda text: len(text.split())) == "one two three"
    assert fit_prompt("one two", 3, lambda text: len(text.split())).split() == ["one", "two", "one"]
    with pytest.raises(InvalidRequest, match="no beginning of it has 3 rows"):
        fit_prompt("one two", 3, lambda text: 2 * len(text))


def test_backends_that_are_no_reference_are_approximations() -> None:
    def choice(*names: str) -> BackendChoice:
        grades = dict.fromkeys(names, "validated") | {"sdpa": "reference"}
        return BackendChoice(names[0], "", names, grades, {})

    facts = EngineFacts("cpu", "", (), choice("sdpa", "sage3"), choice("nvfp4"), {}, {})
    clip = Clip(Path(), "", 0, 0, 0, 0, 0, 0, 0, "sage3", "nvfp4", {}, {}, {})
    assert approximations(facts, clip) == ("attention sage3: validated", "linear nvfp4: validated")


def test_machine_and_checkout_are_told(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Processor @ 2 GHz\nmodel name\t: another\n")
    assert processor(cpuinfo) == "A Processor @ 2 GHz"
    assert processor(tmp_path / "none")
    assert this_runtime().version == __version__

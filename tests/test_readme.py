"""The README's commands are the promised ones, complete on a fresh machine; what it shows is there."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from benchmarks.quality_bundles import brief, read_bundles
from benchmarks.readme_lines import SPARK, lines_of, settings_of
from h3runtime.__main__ import build_parser, main
from h3runtime.api.request import read_body
from h3runtime.settings import resolve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def first_fenced_block(heading: str) -> str:
    section = README.split(f"\n## {heading}\n", 1)[1]
    found = re.search(r"```[a-z]*\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found.group(1).strip()


def test_the_quick_start_ends_in_a_clip() -> None:
    assert first_fenced_block("Quick start") == (
        "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 -e ."
        " && .venv/bin/h3runtime demo --output demo.mp4"
    )


def test_the_test_command_is_complete() -> None:
    assert first_fenced_block("Tests") == (
        "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 -e '.[test]' "
        "&& .venv/bin/pytest -n 2 --dist loadfile"
    )


def test_its_pictures_are_there() -> None:
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert shown and all((ROOT / path).is_file() for path in shown)


def test_its_table_of_bundles_is_what_was_measured() -> None:
    bundles = read_bundles(ROOT / "benchmarks/nano/bundles.json")
    assert brief(bundles) in README
    assert {each.clips for each in bundles} == {200}


def test_a_spark_takes_five_lines() -> None:
    get, look, name, start, ask = (line.text for line in lines_of(SPARK))
    assert get.startswith("git clone ") and " && mkdir -p models" in get
    assert "h3runtime models" in look and name.endswith(" > h3.env")
    assert start.endswith(" up -d --build") and ask.startswith("curl ")


def test_each_of_them_names_what_there_is() -> None:
    services = yaml.safe_load((ROOT / "compose.spark.yml").read_text())["services"]
    composed = [line for line in lines_of(SPARK) if line.is_compose]
    assert len(composed) == 3
    for line in composed:
        assert line.words[2:4] == ["-f", "compose.spark.yml"]
        inside = line.command_inside
        assert line.starts_a_server != (inside is not None)
        if inside is not None:
            assert "shell" in services and line.words[line.words.index("shell") + 1] == "-c"
            command, *arguments = shlex.split(inside)
            assert command == "h3runtime" and build_parser(arguments[0]).parse_args(arguments).run is not None
            # A terminal would end each line of a file with a carriage return.
            assert (line.writes is None) or "-T" in line.words


def test_the_first_request_is_one_that_is_taken() -> None:
    words = lines_of(SPARK)[-1].words
    assert "localhost:8001/generate" in words
    read = read_body(json.loads(words[words.index("-d") + 1]))
    assert not read.offences


def test_what_names_the_files_is_what_compose_hands_to_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without files nothing is named, the exit code says so, and the switches of a Spark stay."""
    _, look, name, *_ = lines_of(SPARK)
    models = tmp_path / "models"
    models.mkdir()
    codes = []
    for line in (look, name):
        assert line.command_inside is not None
        arguments = shlex.split(line.command_inside.replace("/models", str(models)))[1:]
        codes.append(main(arguments))
        said = capsys.readouterr().out
        if line is look:
            assert "minimax_h3_fl2va_pruned_nvfp4.safetensors" in said and "0 of 8 files" in said
    assert codes == [1, 1]
    for file in ("compose.spark.yml", "spark.env"):
        (tmp_path / file).write_text((ROOT / file).read_text())
    (tmp_path / "h3.env").write_text(f"{said}H3_NVFP4_SWIGLU_FUSION=0\n")
    settings = settings_of(tmp_path)
    assert settings["H3_NVFP4_SWIGLU_FUSION"] == "0" and settings["H3_NVFP4_MODULATE_FUSION"] == "1"
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    assert resolve().nvfp4_modulate_fusion and not resolve().nvfp4_swiglu_fusion

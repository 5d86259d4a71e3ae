"""The README's two commands are the promised ones, complete on a fresh machine; what it shows is there."""

import re
from pathlib import Path

from benchmarks.quality_bundles import brief, read_bundles

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

"""Every file of the fixture directory is one test; `kinds/<kind>.py` knows how to replay that kind."""

import importlib

import pytest

from tests.parity.fixture import DIRECTORY, Fixture

FILES = sorted(p for p in DIRECTORY.glob("*") if p.suffix in {".safetensors", ".json"}) if DIRECTORY.is_dir() else []


def test_the_directory_holds_cases() -> None:
    if not DIRECTORY.is_dir():
        pytest.skip(f"no fixtures at {DIRECTORY}")
    assert FILES, f"{DIRECTORY} holds no .safetensors or .json file"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_fixture(path) -> None:
    fixture = Fixture(path)
    importlib.import_module(f"tests.parity.kinds.{fixture.kind}").check(fixture)

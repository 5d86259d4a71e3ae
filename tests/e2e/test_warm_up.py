"""What the warm-up may touch, and what it doesn't let stop a server."""

import tempfile
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from h3runtime.checkpoint.sources import SYNTHETIC_KEY
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import CheckpointError
from h3runtime.media.ffmpeg import FFmpeg, find_ffmpeg
from h3runtime.media.probe import probe_clip
from h3runtime.settings import Settings
from tests.e2e.conftest import MakeSpec
from tests.tiny_set import tiny_paths


def broken_ffmpeg(folder: Path) -> FFmpeg:
    path = folder / "ffmpeg"
    path.write_text("#!/bin/sh\necho out of order >&2\nexit 7\n")
    path.chmod(0o755)
    return FFmpeg(path, "0", frozenset({"libx264", "aac"}), "of this test")


def test_an_encoder_that_fails_is_told_and_can_be_put_right(tmp_path: Path, make_spec: MakeSpec) -> None:
    engine = ResidentEngine(Settings(device="cpu", data_dir=tmp_path / "data", **tiny_paths()), threads=1)
    engine.tool = broken_ffmpeg(tmp_path)
    engine.load(lambda _: None)
    assert any("out of order" in warning for warning in engine.facts().warnings)
    engine.tool = find_ffmpeg()
    clip = engine.generate(make_spec(), lambda _: None, lambda: False)
    assert probe_clip(clip.output).frames == 22
    assert not any("out of order" in warning for warning in clip.warnings)
    engine.close()


def test_it_needs_no_folder_but_the_servers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    engine = ResidentEngine(Settings(device="cpu", data_dir=tmp_path, **tiny_paths()), threads=1)
    engine.load(lambda _: None)
    assert not any((tmp_path / "tmp").iterdir())
    engine.close()


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    transformer = tiny_paths()["model_path"]
    spoilt = tmp_path / transformer.name
    weights, names = load_file(transformer), ("blocks.1.norm1.weight", "token_refiner.final_norm.weight")
    for name in names:
        weights[name][3] = float("nan")
    save_file(weights, spoilt, {SYNTHETIC_KEY: "1"})
    engine = ResidentEngine(
        Settings(device="cpu", data_dir=tmp_path, **(tiny_paths() | {"model_path": spoilt})), threads=1
    )
    with pytest.raises(CheckpointError) as caught:
        engine.load(lambda _: None)
    assert {o.field for o in caught.value.offences} == set(names) and spoilt.name in caught.value.message

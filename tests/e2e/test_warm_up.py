"""What the warm-up may touch, and what it doesn't let stop a server."""

import tempfile
from pathlib import Path

import pytest

from h3runtime.engine.resident import ResidentEngine
from h3runtime.media.ffmpeg import FFmpeg, find_ffmpeg
from h3runtime.media.probe import probe_clip
from h3runtime.settings import Settings
from tests.e2e.conftest import MakeSpec


def broken_ffmpeg(folder: Path) -> FFmpeg:
    path = folder / "ffmpeg"
    path.write_text("#!/bin/sh\necho out of order >&2\nexit 7\n")
    path.chmod(0o755)
    return FFmpeg(path, "0", frozenset({"libx264", "aac"}), "of this test")


def test_an_encoder_that_fails_is_told_and_can_be_put_right(tmp_path: Path, make_spec: MakeSpec) -> None:
    engine = ResidentEngine(Settings(device="cpu", data_dir=tmp_path / "data"), threads=1)
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
    engine = ResidentEngine(Settings(device="cpu", data_dir=tmp_path), threads=1)
    engine.load(lambda _: None)
    assert not any((tmp_path / "tmp").iterdir())
    engine.close()

"""The one command of training, with VAEs that are not trained: its stages fit together, and go on from what it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from h3runtime.nano.training import __main__ as command
from h3runtime.nano.training import clips, joint, samples
from h3runtime.nano.training.masters import AUDIO_VAE, TEXT_ENCODER, TRANSFORMER, VIDEO_VAE
from tests.nano.training.untrained import untrained_audio_vae, untrained_video_vae

SIZES = joint.Sizes((clips.Size(64, 64, 5, 3), clips.Size(64, 32, 5, 3)), (0.7, 0.3))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(made: torch.nn.Module, name: str) -> Any:
        return lambda out, *_: save_file(made.state_dict(), out / name)

    monkeypatch.setattr(command, "train_video_vae", write(untrained_video_vae(), VIDEO_VAE))
    monkeypatch.setattr(command, "train_audio_vae", write(untrained_audio_vae(), AUDIO_VAE))
    monkeypatch.setattr(joint, "Sizes", lambda: SIZES)


def test_every_stage_runs_and_a_later_run_goes_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert (
        command.main([str(first), "--joint-seconds", "0.1", "--rows", "300", "--workers", "0", "--devices", "1"]) == 0
    )
    names = {path.name for path in first.iterdir()}
    assert {TRANSFORMER, TEXT_ENCODER, VIDEO_VAE, AUDIO_VAE, "sheet.png"} <= names
    caption, scene, frames, sounds = samples.kept(first)[0]
    assert caption and scene.actors and frames.shape == (5, 64, 64, 3) and sounds.shape == (2, 6400)
    again = ["--resume", str(first), "--video-seconds", "0", "--audio-seconds", "0", "--joint-seconds", "0"]
    assert command.main([str(second), *again, "--rows", "300", "--workers", "0", "--devices", "1"]) == 0
    assert (second / TRANSFORMER).read_bytes() == (first / TRANSFORMER).read_bytes()


def test_nothing_to_go_on_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="none to go on from"):
        command.main([str(tmp_path), "--video-seconds", "0", "--workers", "0", "--devices", "1"])

"""The one command of training, with VAEs that are not trained: its stages fit together, and go on from what it left."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from h3runtime.nano import model
from h3runtime.nano.training import clips, command, curriculum, samples
from h3runtime.nano.training.masters import AUDIO_VAE, TEXT_ENCODER, TRANSFORMER, VIDEO_VAE
from h3runtime.nano.training.video_vae import STATE
from tests.nano.training.small import small_dit
from tests.nano.training.untrained import untrained_audio_vae, untrained_video_vae

SMALL = ("--rows", "300", "--workers", "0", "--devices", "1", "--samples", "2", "--upscaler-seconds", "0")
SIZES = curriculum.Sizes((clips.Size(64, 64, 5, 3), clips.Size(64, 32, 5, 3)), (0.7, 0.3))


def video_vae_files(out: Path, *_: object) -> None:
    tensors = untrained_video_vae().state_dict()
    save_file(tensors, out / VIDEO_VAE)
    save_file(tensors, out / STATE)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(made: torch.nn.Module, name: str) -> Any:
        return lambda out, *_: save_file(made.state_dict(), out / name)

    monkeypatch.setattr(command, "train_video_vae", video_vae_files)
    monkeypatch.setattr(command, "train_audio_vae", write(untrained_audio_vae(), AUDIO_VAE))
    monkeypatch.setattr(curriculum, "Sizes", lambda: SIZES)
    monkeypatch.setattr(model, "transformer", small_dit)
    monkeypatch.setattr(clips, "PORTRAIT_SHARES", (0.28,))
    monkeypatch.setattr(command, "SIDES", (64,))


def test_every_stage_runs_and_a_later_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, keep = tmp_path / "first", tmp_path / "second", ["--keep", str(tmp_path)]
    assert command.main([str(first), "--joint-seconds", "0.1", *keep, *SMALL]) == 0
    names = {path.name for path in first.iterdir()}
    assert {TRANSFORMER, TEXT_ENCODER, VIDEO_VAE, AUDIO_VAE, "sheet.png"} <= names
    caption, scene, frames, sounds = samples.kept(first)[0]
    assert caption and scene.actors and frames.shape == (5, 64, 64, 3) and sounds.shape == (2, 6400)
    again = ["--resume", str(first), "--video-seconds", "0", "--audio-seconds", "0", "--joint-seconds", "0"]
    assert command.main([str(second), *again, *keep, *SMALL]) == 0
    assert (second / TRANSFORMER).read_bytes() == (first / TRANSFORMER).read_bytes()
    assert capsys.readouterr().out.count("kept here") == 1


def test_the_decoder_goes_on_from_what_the_training_or_an_earlier_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this run's state where it trained the VAE, of the earlier one's where it took it."""
    first, second = tmp_path / "first", tmp_path / "second"
    states: list[Path | None] = []

    def train(out: Path, _seconds: float, _device: torch.device, state: Path | None, *_: object) -> None:
        states.append(state)
        video_vae_files(out)

    monkeypatch.setattr(command, "train_video_vae", train)
    few = ("--joint-seconds", "0", *SMALL)
    assert command.main([str(first), "--decoder-seconds", "1", *few]) == 0
    assert states == [None, first / STATE]
    taken = ["--resume", str(first), "--video-seconds", "0", "--audio-seconds", "0"]
    assert command.main([str(second), "--decoder-seconds", "1", *taken, *few]) == 0
    assert states[2:] == [second / STATE]
    (first / STATE).unlink()
    with pytest.raises(SystemExit, match=r"video_vae.state.safetensors.*none to go on from"):
        command.main([str(tmp_path / "third"), *taken, *few])


def test_nothing_to_go_on_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="none to go on from"):
        command.main([str(tmp_path), "--video-seconds", "0", "--workers", "0", "--devices", "1"])


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """What is started anew finds its functions again, and gradients meet."""
    held, out = tmp_path / "held", tmp_path / "out"
    held.mkdir()
    save_file(untrained_video_vae().state_dict(), held / VIDEO_VAE)
    save_file(untrained_audio_vae().state_dict(), held / AUDIO_VAE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = f"--resume {held} --video-seconds 0 --audio-seconds 0 --joint-seconds 0.2 --rows 100 --workers 0"
    given += f" --devices 2 --sizes 64x32x5x2 --samples 1 --decoder-seconds 0 --upscaler-seconds 0 --port {port}"
    assert command.main([str(out), *given.split()]) == 0
    assert (out / TRANSFORMER).exists() and "1 clips judged: " in (out / "log.txt").read_text()


def test_what_runs_by_name_is_defined_elsewhere() -> None:
    """A process that is started anew looks for functions in modules, and `__main__` is another one there."""
    assert command._work.__module__ == "h3runtime.nano.training.command"
    assert "def " not in Path(command.__file__).with_name("__main__.py").read_text()


def test_the_joint_training_gets_what_the_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["out", "--within", "100", "--decoder-seconds", "10", "--upscaler-seconds", "20"]
    monkeypatch.setattr(command.time, "monotonic", lambda: 1000.0)
    arguments = command.parsed(given)
    monkeypatch.setattr(command.time, "monotonic", lambda: 1030.0)
    assert command._joint_seconds(arguments) == 100 - 10 - 20 - 30 - command.SAMPLING - command.STARTING
    assert command._joint_seconds(command.parsed(["out", "--joint-seconds", "7"])) == 7

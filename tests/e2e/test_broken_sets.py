"""A set of files with faults in it: one error, before anything is loaded, that names every file and what is wrong."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from h3runtime.checkpoint.synthetic.tiny import tiny_set
from h3runtime.engine import load as module
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import CheckpointError
from h3runtime.jobs.engine_view import reason_of
from h3runtime.settings import Settings, default_cache_dir


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A copy of the tiny set, by the settings that name its files."""
    found = tiny_set(default_cache_dir())
    names = ("transformer", "text_encoder", "video_vae", "audio_vae", "tokenizer")
    folder = shutil.copytree(found.transformer.parent, tmp_path / "set")
    settings = ("model_path", "text_encoder_path", "video_vae_path", "audio_vae_path", "tokenizer_path")
    return {setting: folder / getattr(found, name).name for setting, name in zip(settings, names, strict=True)}


def rename(file: Path, tensor: str) -> None:
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["renamed"] = header.pop(tensor)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def why_not(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, data: Path) -> str:
    """What `/ready` would say. Loading itself must not begin."""
    monkeypatch.setattr(module, "load_module", None)
    engine = ResidentEngine(Settings(device="cpu", data_dir=data, **files), threads=1)
    with pytest.raises(CheckpointError) as caught:
        engine.load(lambda _: None)
    return reason_of(caught.value)


@pytest.mark.parametrize(
    ("setting", "tensor"),
    [
        ("model_path", "final_layer.adaln_proj.linear.bias"),
        ("text_encoder_path", "model.layers.0.input_layernorm.weight"),
        ("video_vae_path", "decoder.register_tokens"),
        ("audio_vae_path", "pre_block.proj.weight"),
    ],
)
def test_file_and_tensor_are_named(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, tensor: str
) -> None:
    rename(files[setting], tensor)
    reason = why_not(files, monkeypatch, tmp_path)
    assert files[setting].name in reason and tensor in reason


def test_faults_of_all_files_are_told_at_once(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files["model_path"].unlink()
    files["video_vae_path"].write_bytes(b"")
    files["audio_vae_path"].write_bytes(files["audio_vae_path"].read_bytes()[:-8])
    reason = why_not(files, monkeypatch, tmp_path)
    for name in ("model_path", "video_vae_path", "audio_vae_path"):
        assert reason.count(files[name].name) == 1
    assert "(file)" not in reason and reason.count("is empty") == 1


def test_a_transformer_of_the_other_partition_is_refused_by_its_name(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its tensors can't tell; loaded all the same, it would make wrong clips without an error."""
    wrong = files["model_path"].with_name("minimax_h3_ref2va_pruned_nvfp4.safetensors")
    files["model_path"] = files["model_path"].rename(wrong)
    said = why_not(files, monkeypatch, tmp_path)
    assert "minimax_h3_ref2va_pruned_nvfp4.safetensors" in said and "T2VA, I2VA, L2VA and FL2VA need fl2va" in said

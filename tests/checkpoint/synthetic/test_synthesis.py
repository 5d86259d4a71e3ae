"""Whole sets: complete, named as published, found by the settings, checked by their sums, the same for a seed."""

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from h3runtime.checkpoint.families import detect_component
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.synthetic import full_size, layouts, synthesis
from h3runtime.checkpoint.synthetic.adapters import LAYOUTS
from h3runtime.checkpoint.synthetic.published import FORMATS
from h3runtime.checkpoint.synthetic.synthesis import Order, Written, environment, plan, write_headers, write_set
from h3runtime.checkpoint.synthetic.tiny import AUDIO_VAE, VIDEO_VAE
from h3runtime.errors import DiskFull, InvalidRequest, OutputExists
from h3runtime.settings import resolve

COMPONENTS = ("transformer", "text_encoder", "video_vae", "audio_vae")
ENCODERS = {"nvfp4": "nvfp4_awq", "int8_convrot": "int8_convrot", "fp8_scaled": "bf16", "bf16": "bf16"}


def make(folder: Path, order: Order, *, overwrite: bool = False) -> tuple[Written, ...]:
    return write_set(folder, order, overwrite=overwrite, on_bytes=lambda *_: None, threads=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    folders: dict[tuple[str, bool], Path] = {}

    def folder(kind: str, pruned: bool) -> Path:
        if (kind, pruned) not in folders:
            at = folders[kind, pruned] = tmp_path_factory.mktemp("set") / "with space"
            make(at, Order(kind, pruned))
        return folders[kind, pruned]

    return folder


@pytest.mark.parametrize("pruned", [True, False])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_set_is_complete(made: Callable[[str, bool], Path], kind: str, pruned: bool) -> None:
    folder = made(kind, pruned)
    names = [
        f"minimax_h3_fl2va_{'pruned_' if pruned else ''}{kind}.safetensors",
        f"qwen3vl_32b_minimax_h3_{ENCODERS[kind]}.safetensors",
        "minimax_h3_video_vae_fp16.safetensors",
        "minimax_h3_audio_vae_fp32.safetensors",
    ]
    assert {p.name for p in folder.iterdir()} == {*names, "tokenizer", "h3.env", "SHA256SUMS", "SYNTHETIC"}
    for name, component in zip(names, COMPONENTS, strict=True):
        with CheckpointFile(folder / name) as file:
            assert detect_component(file.shapes) == component and file.synthetic
    with CheckpointFile(folder / names[0]) as file:
        assert ("adaln_t_table" in file.shapes) is pruned
        sizes = {part: file.read(f"blocks.1.attn.{part}_norm.weight").numel() for part in ("q", "k")}
        assert sizes == {"q": 128, "k": 128}


def test_the_groups_of_the_rotation_are_the_published_ones(made: Callable[[str, bool], Path]) -> None:
    with CheckpointFile(next(made("int8_convrot", False).glob("*fl2va*"))) as file:
        groups = {name: layer.marker.convrot for name, layer in file.layers.items()}
    assert {g for n, g in groups.items() if "adaln" in n} == {64} and {
        g for n, g in groups.items() if "adaln" not in n
    } == {256}
    assert len(groups) == 3 * 5


def test_comfyui_refines_what_the_encoder_gives(made: Callable[[str, bool], Path]) -> None:
    """It goes by widths: text as wide as the transformer's rows has been through the refiner already."""
    folder = made("bf16", True)
    with CheckpointFile(next(folder.glob("*fl2va*"))) as file, CheckpointFile(next(folder.glob("qwen3vl*"))) as encoder:
        hidden, width = file.shapes["condition_proj.weight"]
        assert encoder.shapes["model.embed_tokens.weight"][1] == width != hidden


def test_settings_and_shells_find_it(made: Callable[[str, bool], Path]) -> None:
    folder = made("bf16", True)
    settings = resolve({}, folder / "h3.env")
    told = (settings.model_path, settings.text_encoder_path, settings.video_vae_path, settings.audio_vae_path)
    assert all(path is not None and path.is_file() and path.parent == folder for path in told)
    assert settings.tokenizer_path == folder / "tokenizer"
    script = "set -a; . ./h3.env; env"
    out = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, check=True, env={}).stdout
    assert f"H3_MODEL_PATH={settings.model_path}" in out.splitlines()
    assert len([line for line in out.splitlines() if line.startswith("H3_")]) == 5


def test_both_partitions_of_one_set(tmp_path: Path, made: Callable[[str, bool], Path]) -> None:
    written = make(tmp_path / "both", Order("nvfp4", partitions=("fl2va", "ref2va")))
    first, second = (file.path for file in written[:2])
    assert second.name == "minimax_h3_ref2va_pruned_nvfp4.safetensors"
    assert first.read_bytes() == (made("nvfp4", True) / first.name).read_bytes() != second.read_bytes()
    settings = resolve({}, tmp_path / "both" / "h3.env")
    assert (settings.model_path, settings.ref2va_model_path) == (first, second)
    with CheckpointFile(first) as ours, CheckpointFile(second) as other:
        assert ours.shapes == other.shapes and ours.dtypes == other.dtypes
    alone = make(tmp_path / "alone", Order("nvfp4", partitions=("ref2va",)))
    assert [file.path.name for file in alone] == [file.path.name for file in written[1:]]
    assert [file.sha256 for file in alone] == [file.sha256 for file in written[1:]]
    settings = resolve({}, tmp_path / "alone" / "h3.env")
    assert settings.model_path is None and settings.ref2va_model_path == alone[0].path


def test_paths_are_quoted_only_where_a_shell_needs_it() -> None:
    plain, spaced = (environment(Path(f"/weights/{name}"), plan(Order("bf16"))).splitlines() for name in ("h3", "h 3"))
    assert dict(line.split("=", 1) for line in plain)["H3_TOKENIZER_PATH"] == "/weights/h3/tokenizer"
    assert spaced[-1] == "H3_TOKENIZER_PATH='/weights/h 3/tokenizer'"


def test_sums_hold(made: Callable[[str, bool], Path]) -> None:
    folder = made("nvfp4", True)
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob("*.safetensors")}


def test_bytes_follow_the_seed_alone(tmp_path: Path, made: Callable[[str, bool], Path]) -> None:
    again, other = make(tmp_path / "again", Order("nvfp4")), make(tmp_path / "other", Order("nvfp4", seed=1))
    for first, second in zip(again, other, strict=True):
        assert first.path.read_bytes() == (made("nvfp4", True) / first.path.name).read_bytes()
        assert first.sha256 != second.sha256 and first.bytes == second.bytes == first.path.stat().st_size


# --- what is in the way ---


def test_an_existing_set_is_kept_unless_told(tmp_path: Path) -> None:
    tiny = Order("nvfp4")
    first = make(tmp_path, tiny)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OutputExists, match="fl2va_pruned_nvfp4") as caught:
        make(tmp_path, replace(tiny, seed=1))
    assert len(caught.value.offences) == 6 and first[0].path.stat().st_size == first[0].bytes
    second = make(tmp_path, replace(tiny, seed=1), overwrite=True)
    assert second[0].sha256 != first[0].sha256 and (tmp_path / "mine.txt").read_text() == "mine"
    assert second[0].sha256 in (tmp_path / "SHA256SUMS").read_text()
    assert first[0].sha256 not in (tmp_path / "SHA256SUMS").read_text()


def test_too_small_a_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(synthesis.shutil, "disk_usage", lambda _: usage)
    needed = sum(file.size() for file in plan(Order("nvfp4")))
    with pytest.raises(DiskFull, match=r"needs \d+ bytes, 1000 are available") as caught:
        make(tmp_path / "set", Order("nvfp4"))
    assert needed < int(caught.value.message.split("needs ")[1].split()[0]) < needed + (2 << 20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["it's", 'a"b', "a$b", "a\nb", "a\\b"])
def test_a_name_that_no_env_file_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"h3\.env"):
        make(tmp_path / name, Order("nvfp4"))
    assert list(tmp_path.iterdir()) == []


# --- the published sizes, and headers alone ---


@pytest.fixture
def shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is streamed is small."""
    small = synthesis.SetSizes(
        layouts.TransformerSizes(hidden=256, layers=2, heads=2, ffn=256, text_dim=256),
        layouts.EncoderSizes(
            vocab=300, hidden=256, intermediate=256, layers=2, heads=2, kv_heads=1, vision_hidden=64, vision_depth=1
        ),
        VIDEO_VAE,
        AUDIO_VAE,
    )
    monkeypatch.setattr(synthesis, "FULL", small)
    monkeypatch.setattr(full_size, "STREAMED", 1 << 16)


@pytest.mark.usefixtures("shrunk")
def test_streamed_files_say_in_a_file_beside_that_they_are_made_up(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    order = Order("nvfp4", full_size=True)
    written = write_set(tmp_path, order, overwrite=False, on_bytes=lambda *at: told.append(at), threads=2)
    total = sum(file.bytes for file in written)
    assert told == sorted(told) and told[-1] == (total, total) and len(told) > 100
    for file in written:
        with CheckpointFile(file.path) as opened:
            assert opened.synthetic and "h3runtime_synthetic" not in opened.metadata
            assert len(opened.source.entries) == file.tensors
        assert hashlib.sha256(file.path.read_bytes()).hexdigest() == file.sha256


@pytest.mark.usefixtures("shrunk")
def test_headers_give_way_to_the_set(tmp_path: Path) -> None:
    order = Order("int8_convrot", full_size=True)
    headers = write_headers(tmp_path, order, overwrite=False)
    assert {p.name for p in tmp_path.iterdir()} == {file.path.name for file in headers}
    alone = {file.path.name: file.path.read_bytes() for file in headers}
    written = make(tmp_path, order)
    for file, before in zip(written, headers, strict=True):
        assert file.path.read_bytes().startswith(alone[file.path.name])
        assert (file.bytes, file.tensors) == (before.bytes, before.tensors) and file.path.stat().st_size == file.bytes
    with pytest.raises(OutputExists):
        write_headers(tmp_path, order, overwrite=False)


def test_adapters_come_with_a_tiny_set_where_they_are_ordered(tmp_path: Path) -> None:
    make(tmp_path / "set", Order("bf16", loras=True))
    settings = resolve({}, tmp_path / "set" / "h3.env")
    assert settings.lora_dir == tmp_path / "set" / "loras"
    assert {path.stem for path in settings.lora_dir.iterdir()} == set(LAYOUTS)
    with pytest.raises(InvalidRequest, match="tiny sets alone"):
        make(tmp_path / "full", Order("bf16", full_size=True, loras=True))

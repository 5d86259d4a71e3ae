"""`h3runtime models`: what a machine needs, and what is said of files that are there, wrong, or called otherwise."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from h3runtime.__main__ import main
from h3runtime.checkpoint import published_files
from h3runtime.checkpoint.embedded.sets import embedded_set
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.published_files import PUBLISHED, TOKENIZER, PublishedFile
from h3runtime.cli import models
from h3runtime.engine import model_files
from h3runtime.engine.machines import MACHINES
from h3runtime.engine.model_files import Checked, checked, files_for
from h3runtime.settings import Settings, default_cache_dir, resolve
from tests.tiny_set import tiny_paths

ROLES = ("fl2va", "text_encoder", "video_vae", "audio_vae")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The embedded model's files under the names of the published ones: sound files, of other sizes."""
    made, folder = embedded_set(default_cache_dir()), tmp_path / "models"
    folder.mkdir()
    files = {role: name_of(role) for role in ROLES}
    paths = {"fl2va": made.transformer, "text_encoder": made.text_encoder}
    paths |= {"video_vae": made.video_vae, "audio_vae": made.audio_vae}
    for role, path in paths.items():
        shutil.copyfile(path, folder / files[role])
    shutil.copytree(made.tokenizer, folder / "tokenizer")
    return folder


def name_of(role: str) -> str:
    return next(file.name for file in files_for(MACHINES[0].files, ("fl2va",)) if file.role == role)


def as_if_published(folder: Path) -> list[PublishedFile]:
    """The table as if these were what was published."""
    found = []
    for file in files_for(MACHINES[0].files, ("fl2va",)):
        path = folder / ("tokenizer" if file.role == "tokenizer" else "") / file.name
        form = "bf16" if file.role == "text_encoder" else file.format
        found.append(replace(file, bytes=path.stat().st_size, sha256=sha256_of(path), format=form))
    return found


def look(file: PublishedFile, folder: Path, *, hashed: bool = True) -> Checked:
    return checked(file, folder, Settings(), hashed=hashed, on_bytes=lambda *_: None)


def one(folder: Path, role: str) -> PublishedFile:
    return next(file for file in as_if_published(folder) if file.role == role)


# Files that are there


def test_what_is_right_is_right_by_every_byte(there: Path) -> None:
    for file in as_if_published(there):
        found = look(file, there)
        assert found.is_right and found.sha256 == file.sha256 and not found.notes, found


def test_without_hashing_size_and_layout_are_right_alone(there: Path) -> None:
    file = one(there, "audio_vae")
    found = look(file, there, hashed=False)
    assert found.is_right and found.sha256 is None and "--verify" in found.notes[0]
    # What was hashed once is remembered of the very file.
    look(file, there)
    assert look(file, there, hashed=False).sha256 == file.sha256


def test_folders_of_the_repository_will_do_as_well(there: Path) -> None:
    file = one(there, "audio_vae")
    (there / "vae").mkdir()
    (there / file.name).rename(there / "vae" / file.name)
    assert look(file, there).path == there / "vae" / file.name


def test_one_bit_is_told_by_hashing_alone(there: Path) -> None:
    file = one(there, "audio_vae")
    raw = bytearray((there / file.name).read_bytes())
    raw[-1] ^= 1
    (there / file.name).write_bytes(raw)
    assert look(file, there, hashed=False).is_right
    found = look(file, there)
    assert not found.is_right and str(file.sha256) in found.faults[0]


def test_a_digest_that_nobody_told_is_never_made_up(there: Path) -> None:
    found = look(replace(one(there, "audio_vae"), sha256=None), there)
    assert found.is_right and "nobody has told its SHA-256" in found.notes[0]


def test_other_sizes_other_models_and_what_is_missing(there: Path) -> None:
    file = one(there, "audio_vae")
    assert "has" in look(replace(file, bytes=file.bytes + 1), there).faults[0]
    other = replace(file, name=name_of("video_vae"), bytes=(there / name_of("video_vae")).stat().st_size)
    assert look(other, there).faults == ("is a video VAE, and should be an audio VAE",)
    (there / file.name).unlink()
    assert look(file, there).faults == (f"isn't in {there}",)


def test_another_spelling_is_pointed_out(there: Path) -> None:
    file = one(there, "fl2va")
    (there / file.name).rename(there / "MiniMax_H3_FL2VA_pruned_nvfp4.safetensors")
    assert look(file, there).faults[0].endswith("MiniMax_H3_FL2VA_pruned_nvfp4.safetensors is, another spelling")


def test_a_known_upload_with_bytes_too_many_is_told_by_its_size(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = one(there, "fl2va")
    with (there / file.name).open("ab") as out:
        out.write(b"\nmore")
    known = replace(published_files.TRAILING[0], name=file.name, bytes=file.bytes + 5, extra=5)
    monkeypatch.setattr(model_files, "TRAILING", (known,))
    assert "with 5 bytes behind its last tensor" in look(file, there).faults[0]


def test_a_broken_header_a_text_and_made_up_weights_are_told(there: Path) -> None:
    file = one(there, "audio_vae")
    raw = bytearray((there / file.name).read_bytes())
    raw[20] ^= 255
    (there / file.name).write_bytes(raw)
    assert "header" in look(file, there).faults[0]
    (there / file.name).write_bytes(b"GGUF" + bytes(len(raw) - 4))
    assert look(file, there).faults == ("is a GGUF file",)
    tiny = tiny_paths()["audio_vae_path"]
    shutil.copyfile(tiny, there / file.name)
    made = replace(file, bytes=tiny.stat().st_size)
    assert "is made up: the published sizes with random values" in look(made, there).faults


def test_a_format_that_isn_t_the_one_is_told(there: Path) -> None:
    found = look(replace(one(there, "fl2va"), format="pruned_bf16"), there)
    assert found.faults == ("is stored as nvfp4, and should be bf16",)
    assert look(replace(one(there, "fl2va"), format="nvfp4"), there).faults == ("has pruned AdaLN",)


# The command


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan itself is another test's."""
    from h3runtime.engine.memory_budget import DeviceMemory, budget_of
    from h3runtime.engine.places import place_named
    from h3runtime.engine.planning import Chosen, Line, Plan, Residency

    there = Residency("all", "", Chosen("nvfp4", ""), (Line("text encoder", 5),), 5, 5, 5, 0, ())
    budget = budget_of(DeviceMemory("discrete", 9, 8))
    found = Plan(place_named("h200", Settings()), budget, Chosen("sdpa", ""), (), (there,), "all")
    monkeypatch.setattr(models, "_planned", lambda *_: found)


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("name", ["spark", "32gb", "96gb", "h200"])
def test_each_machine_s_files_are_listed(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["models", "--device", name]) == 0
    said = capsys.readouterr().out
    listed = [file for file in (*PUBLISHED, *TOKENIZER) if f"{file.name} " in said]
    assert {file.role for file in listed} >= {"fl2va", "text_encoder", "video_vae", "audio_vae", "tokenizer"}
    for file in listed:
        assert f"{file.bytes:,} bytes  {file.repository}: {file.path}" in said
        assert f"SHA-256 {file.sha256}" in said
    assert f"{sum(file.bytes for file in listed):,} bytes" in said and "H3_RESIDENCY=all" in said


@pytest.mark.usefixtures("planned")
def test_one_object_tells_what_was_found(
    capsys: pytest.CaptureFixture[str], there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = as_if_published(there)
    monkeypatch.setattr(model_files, "files_for", lambda *_: tuple(files))
    command = ["models", "--device", "gb10", "--partition", "fl2va", "--dir", str(there), "--quiet"]
    assert main([*command, "--verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["complete"] is True and found["bytes"] == sum(file.bytes for file in files)
    assert all(each["found"]["sha256"] == each["sha256"] for each in found["files"])
    (there / "tokenizer" / "vocab.json").unlink()
    assert main([*command, "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in again["files"] if not each["found"]["right"]] == ["vocab.json"]


def test_lines_for_a_server_name_what_is_right(
    capsys: pytest.CaptureFixture[str], there: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And a server's settings read them."""
    monkeypatch.setattr(model_files, "files_for", lambda *_: tuple(as_if_published(there)))
    assert main(["models", "--dir", str(there), "--env", "--quiet"]) == 0
    lines = capsys.readouterr().out
    (tmp_path / "h3.env").write_text(lines)
    settings = resolve({}, tmp_path / "h3.env")
    assert settings.model_path == there / name_of("fl2va") and settings.tokenizer_path == there / "tokenizer"
    assert len(lines.splitlines()) == 5
    (there / name_of("audio_vae")).unlink()
    assert main(["models", "--dir", str(there), "--env", "--quiet"]) == 1
    said = capsys.readouterr()
    assert name_of("audio_vae") in said.err and "AUDIO" not in said.out


def test_words_that_need_a_folder_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, word in (
        (["--verify"], "--verify"),
        (["--env"], "--env"),
        (["--dir", str(tmp_path / "nowhere")], "is no folder"),
        (["--device", "here"], "there is no machine 'here'"),
    ):
        assert main(["models", *arguments]) == 1
        assert word in capsys.readouterr().err


def test_nothing_is_fetched_and_nothing_in_the_folder_changes(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refused)
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    for file in as_if_published(there):
        look(file, there)
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before

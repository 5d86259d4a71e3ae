"""Adapters that are there without a folder: for whose transformer, under whose name, and only in their own bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from h3runtime.checkpoint.embedded.adapters import own_adapters
from h3runtime.checkpoint.embedded.packaged import ADAPTERS
from h3runtime.checkpoint.embedded.sets import embedded_set
from h3runtime.checkpoint.expected import SUMS_NAME, write_sums
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.checkpoint.synthetic.tiny import TRANSFORMER
from h3runtime.engine.adapters import AdapterShelf, adapter_paths
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import CheckpointError
from h3runtime.settings import default_cache_dir
from tests.tiny_set import tiny_paths


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file that is there without a folder, and what its list says of it."""
    path = tmp_path / "own" / "turbo.safetensors"
    path.parent.mkdir()
    adapter("comfyui_turbo", TRANSFORMER).write(path)
    write_sums(path.parent, {path.name: sha256_of(path)})
    return path


def listed(engine: ResidentEngine, folder: Path | None, own: Path) -> AdapterShelf:
    shelf = AdapterShelf(folder, 2**30, engine.device)
    shelf.list(engine.models.transformers, own=[own])
    return shelf


@pytest.mark.parametrize("kind", ["nvfp4", "bf16"])
def test_the_embedded_model_has_them_in_every_format(kind: str) -> None:
    made = embedded_set(default_cache_dir(), kind)  # type: ignore[arg-type]
    other = tiny_paths()["model_path"]
    found = own_adapters([other, made.transformer])
    assert found and all(path.parent == ADAPTERS for path in found)
    assert own_adapters([other]) == () == own_adapters([])
    assert all(sha256_of(path) in (ADAPTERS / SUMS_NAME).read_text() for path in found)


def test_a_transformer_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"<html>")
    with pytest.raises(CheckpointError):
        own_adapters([tmp_path / "x.safetensors"])


def test_they_are_listed_and_read_as_any_other(engine: ResidentEngine, own: Path) -> None:
    shelf = listed(engine, None, own)
    (facts,) = shelf.facts
    assert (facts.name, facts.fault, facts.layout) == ("turbo", "", "comfyui_turbo")
    assert facts.fits["fl2va"].matched == facts.fits["fl2va"].total > 0


def test_one_of_the_operator_s_takes_the_place_of_an_own_one(engine: ResidentEngine, own: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    adapter("kohya", TRANSFORMER).write(folder / own.name)
    adapter("kohya", TRANSFORMER).write(folder / "another.safetensors")
    assert adapter_paths(folder, [own]) == {
        "another": folder / "another.safetensors",
        "turbo": folder / "turbo.safetensors",
    }
    assert {facts.name: facts.layout for facts in listed(engine, folder, own).facts} == {
        "another": "kohya",
        "turbo": "kohya",
    }


def test_other_bytes_than_the_list_beside_it_says_are_a_fault(engine: ResidentEngine, own: Path) -> None:
    tensors = load_file(own)
    first = next(iter(tensors))
    save_file({**tensors, first: tensors[first] + 1}, own)
    (facts,) = listed(engine, None, own).facts
    assert "SHA-256" in facts.fault and not facts.fits

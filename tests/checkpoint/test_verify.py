"""Which files are hashed, and what a wrong digest leads to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from h3runtime.checkpoint.expected import PUBLISHED, write_sums
from h3runtime.checkpoint.hashing import CACHE_NAME, sha256_of, sha256_of_parts
from h3runtime.checkpoint.tensor_file import TensorFile
from h3runtime.checkpoint.verify import Verification
from h3runtime.checkpoint.writer import write_file
from h3runtime.errors import CheckpointError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "vae.safetensors"
    write_file(found, {"a": torch.arange(4000)})
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@contextmanager
def verification(
    *paths: Path, full: bool = False, cache: Path | None = None, made_up: bool = False
) -> Iterator[Verification]:
    files = [TensorFile(path) for path in paths]
    try:
        yield Verification(files, full=full, cache_dir=cache, made_up=made_up)
    finally:
        for file in files:
            file.close()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip(path: Path, *, silently: bool = False) -> None:
    """The middle byte; silently: as a disk does it, which tells nobody."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 0xFF]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + (not silently)))


def hashed(path: Path, found: Verification) -> str:
    """As loading does it."""
    for number in found.unknown:
        found.found(number, sha256(path))
    return found.finish().sha256


def test_a_file_is_hashed_once_and_then_believed(path: Path, cache: Path) -> None:
    with verification(path, cache=cache) as found:
        assert found.unknown == {0} and hashed(path, found) == sha256(path)
    with verification(path, cache=cache) as found:
        assert not found.unknown and found.finish().sha256 == sha256(path)
    flip(path)
    with verification(path, cache=cache) as found:
        assert found.unknown == {0}


def test_full_hashes_again_and_finds_what_changed_in_silence(path: Path, cache: Path) -> None:
    before = sha256_of(path, cache)
    with verification(path, full=True, cache=cache) as found:
        assert found.unknown == {0} and hashed(path, found) == before
    flip(path, silently=True)
    with verification(path, cache=cache) as found:
        assert found.finish().sha256 == before
    for _ in range(2):
        with (
            verification(path, full=True, cache=cache) as found,
            pytest.raises(CheckpointError, match=r"vae.safetensors: has changed its bytes") as caught,
        ):
            hashed(path, found)
        assert before in caught.value.message and sha256(path) in caught.value.message


def test_what_full_has_found_changed_is_not_believed_again(path: Path, cache: Path) -> None:
    before = sha256_of(path, cache)
    flip(path, silently=True)
    for full in (True, False, False):
        with verification(path, full=full, cache=cache) as found:
            assert found.unknown == {0}
            with pytest.raises(CheckpointError, match="has changed its bytes"):
                hashed(path, found)
    flip(path, silently=True)
    for unknown in ({0}, set()):
        with verification(path, cache=cache) as found:
            assert found.unknown == unknown and hashed(path, found) == before


@pytest.mark.parametrize("full", [False, True])
def test_a_list_beside_the_file_is_binding(path: Path, cache: Path, full: bool) -> None:
    right = sha256(path)
    write_sums(path.parent, {path.name: right})
    with verification(path, full=full, cache=cache) as found:
        assert hashed(path, found) == right
    flip(path)
    with (
        verification(path, full=full, cache=cache) as found,
        pytest.raises(CheckpointError, match=r"vae.safetensors: is damaged or another file.*SHA256SUMS") as caught,
    ):
        hashed(path, found)
    assert right in caught.value.message and sha256(path) in caught.value.message


def test_what_is_remembered_is_judged_before_any_byte_is_read(path: Path, cache: Path) -> None:
    sha256_of(path, cache)
    write_sums(path.parent, {path.name: "a" * 64})
    with verification(path, cache=cache) as found, pytest.raises(CheckpointError, match=r"vae.safetensors"):
        found.judge()


def test_a_derivative_of_a_published_file_only_warns(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PUBLISHED, (path.name, path.stat().st_size), "a" * 64)
    with verification(path, cache=cache) as found:
        found.found(0, sha256(path))
        (warning,) = found.finish().warnings
    assert path.name in warning and "a" * 64 in warning and "published" in warning
    with verification(path, cache=cache, made_up=True) as found:
        assert found.finish().warnings == ()
    monkeypatch.setitem(PUBLISHED, (path.name, path.stat().st_size), sha256(path))
    with verification(path, cache=cache) as found:
        assert found.finish().warnings == ()


def test_several_files_have_one_digest_and_all_faults_are_told(path: Path, cache: Path) -> None:
    other = path.with_name("another.safetensors")
    write_file(other, {"b": torch.zeros(3)})
    with verification(path, other, cache=cache) as found:
        for number, file in enumerate((path, other)):
            found.found(number, sha256(file))
        told = found.finish().sha256
    lines = f"another.safetensors:{sha256(other)}\nvae.safetensors:{sha256(path)}\n"
    assert told == hashlib.sha256(lines.encode()).hexdigest()
    write_sums(path.parent, {path.name: "a" * 64, other.name: "b" * 64})
    with verification(path, other, cache=cache) as found, pytest.raises(CheckpointError) as caught:
        found.judge()
    assert path.name in caught.value.message and other.name in caught.value.message


def test_one_file_keeps_its_own_digest() -> None:
    assert sha256_of_parts({"x": "a" * 64}) == "a" * 64


def test_without_a_memory_every_file_is_hashed(path: Path) -> None:
    for _ in range(2):
        with verification(path) as found:
            assert found.unknown == {0} and hashed(path, found) == sha256(path)


def test_the_memory_holds_what_was_found_of_a_damaged_file(path: Path, cache: Path) -> None:
    """So that the next start says no at once."""
    write_sums(path.parent, {path.name: "a" * 64})
    with verification(path, cache=cache) as found, pytest.raises(CheckpointError):
        hashed(path, found)
    assert sha256(path) in (cache / CACHE_NAME).read_text()

"""A hash is remembered only for the very file it was taken of."""

import hashlib
import os
from pathlib import Path

import pytest

from h3runtime.checkpoint import hashing
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.errors import CheckpointError


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read."""
    read: list[Path] = []
    real = hashing._hash
    monkeypatch.setattr(hashing, "_hash", lambda path, told: read.append(path) or real(path, told))
    return read


def test_a_hash_is_the_file_s_and_read_once(tmp_path: Path, hashed: list[Path]) -> None:
    path, cache = tmp_path / "w", tmp_path / "cache" / "deep"
    path.write_bytes(b"weights" * 100_000)
    want = hashlib.sha256(path.read_bytes()).hexdigest()
    assert [sha256_of(path, cache) for _ in range(3)] == [want] * 3 and len(hashed) == 1
    assert sha256_of(path) == want and len(hashed) == 2


def test_a_changed_or_replaced_file_is_hashed_again(tmp_path: Path, hashed: list[Path]) -> None:
    path, cache = tmp_path / "w", tmp_path
    path.write_bytes(b"one")
    first = sha256_of(path, cache)
    times = path.stat()
    (tmp_path / "new").write_bytes(b"two")
    os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "new").replace(path)
    assert sha256_of(path, cache) == hashlib.sha256(b"two").hexdigest() != first
    os.utime(path, ns=(1, 1))
    sha256_of(path, cache)
    assert len(hashed) == 3


@pytest.mark.parametrize("spoilt", ["", "[]", "{", '{"x": 7}', "\x00"])
def test_a_spoilt_memory_only_costs_time(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"one")
    (tmp_path / hashing.CACHE_NAME).write_text(spoilt)
    assert sha256_of(path, tmp_path) == hashlib.sha256(b"one").hexdigest()


def test_a_cache_that_can_t_be_written_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"one")
    assert sha256_of(path, path / "below-a-file") == hashlib.sha256(b"one").hexdigest()


def test_a_missing_file_is_typed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="gone: can't be hashed: no such file"):
        sha256_of(tmp_path / "gone", tmp_path)

"""Who has said what a file's digest ought to be: lists, downloads, caches, the published files."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from h3runtime.checkpoint.expected import DOWNLOADS, MAX_SUMS_BYTES, PUBLISHED, SUMS_NAME, expectations, write_sums
from h3runtime.errors import CheckpointError

A, B = "a" * 64, "b" * 64


def digests(path: Path, size: int = 3) -> list[str]:
    return [found.digest for found in expectations(path, size)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "set" / "w.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"one")
    return path


def test_nobody_said_anything(file: Path) -> None:
    assert expectations(file, 3) == ()


@pytest.mark.parametrize(
    "line",
    [
        f"{A}  w.safetensors",
        f"{A} *w.safetensors",
        f"{A.upper()}  ./w.safetensors",
        f"SHA256 (w.safetensors) = {A}",
        f"# a comment\n\n{B}  other\nd41d8cd98f00b204e9800998ecf8427e  w.safetensors\n{A}  w.safetensors\n",
        f"{B}  deeper/w.safetensors\r\n{A}  w.safetensors\r\n",
    ],
)
def test_every_form_of_list(file: Path, line: str) -> None:
    (file.parent / SUMS_NAME).write_text(line)
    (found,) = expectations(file, 3)
    assert (found.digest, found.source, found.binding) == (A, SUMS_NAME, True)


@pytest.mark.parametrize("name", ["w", "with space", "back\\slash", "new\nline", "ünï"])
@pytest.mark.parametrize("options", [[], ["--binary"], ["--tag"]])
def test_the_tool_s_own_output(tmp_path: Path, name: str, options: list[str]) -> None:
    (tmp_path / name).write_bytes(b"one")
    done = subprocess.run(["sha256sum", *options, name], cwd=tmp_path, capture_output=True, check=True)
    (tmp_path / SUMS_NAME).write_bytes(done.stdout)
    assert digests(tmp_path / name) == [hashlib.sha256(b"one").hexdigest()]


def test_a_list_that_we_write_is_one_that_the_tool_reads(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"two")
    sums = write_sums(file.parent, {file.name: B})
    write_sums(file.parent, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (other, file)})
    subprocess.run(["sha256sum", "--strict", "--check", SUMS_NAME], cwd=file.parent, check=True, capture_output=True)
    assert digests(file) == [hashlib.sha256(b"one").hexdigest()] and len(sums.read_text().splitlines()) == 2


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"nonsense\n", f"{A}\n".encode(), f"{A} w.safetensors".encode()])
def test_a_list_that_is_none_says_nothing(file: Path, content: bytes) -> None:
    (file.parent / SUMS_NAME).write_bytes(content)
    assert digests(file) == []


@pytest.mark.parametrize("spoil", [Path.mkdir, lambda path: path.write_bytes(b" " * (MAX_SUMS_BYTES + 1))])
def test_a_list_that_can_t_be_read_is_no_list_that_isn_t_there(file: Path, spoil: Callable[[Path], object]) -> None:
    spoil(file.parent / SUMS_NAME)
    with pytest.raises(CheckpointError, match=r"SHA256SUMS: (can't be read: is a directory|is longer than)"):
        expectations(file, 3)


def metadata(root: Path, name: str, etag: str) -> None:
    path = root / DOWNLOADS / f"{name}.metadata"
    path.parent.mkdir(parents=True)
    path.write_text(f"0123456789012345678901234567890123456789\n{etag}\n1790000000.5\n")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_download_is_found_from_any_depth(tmp_path: Path, depth: int) -> None:
    name = "/".join([*["vae"] * depth, "w.safetensors"])
    metadata(tmp_path, name, A)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"one")
    (found,) = expectations(path, 3)
    assert (found.digest, found.binding) == (A, True) and "Hugging Face" in found.source


def test_the_etag_of_a_small_file_is_no_sha256(tmp_path: Path) -> None:
    metadata(tmp_path, "w.safetensors", "f" * 40)
    assert digests(tmp_path / "w.safetensors") == []


def test_the_hub_s_cache_names_blobs_by_their_digest(tmp_path: Path) -> None:
    blob = tmp_path / "models--x--y" / "blobs" / A
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"one")
    path = tmp_path / "models--x--y" / "snapshots" / "main" / "w.safetensors"
    path.parent.mkdir(parents=True)
    path.symlink_to(Path("..", "..", "blobs", A))
    assert digests(path) == [A]


def test_what_lies_beside_a_link_s_target_counts(tmp_path: Path, file: Path) -> None:
    (file.parent / SUMS_NAME).write_text(f"{A}  {file.name}\n")
    link = tmp_path / "model.safetensors"
    link.symlink_to(file)
    assert digests(link) == [A]


def test_published_files_are_known_by_name_and_size(tmp_path: Path) -> None:
    for (name, size), digest in PUBLISHED.items():
        (found,) = expectations(tmp_path / name, size)
        assert (found.digest, found.binding, len(digest)) == (digest, False, 64)
        assert expectations(tmp_path / name, size + 1) == expectations(tmp_path / f"x{name}", size) == ()

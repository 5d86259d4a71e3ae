"""The mark follows the bytes, not the name."""

from pathlib import Path

import torch

from h3runtime.checkpoint import synthetic_mark
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.synthetic_mark import is_marked_synthetic
from h3runtime.checkpoint.writer import write_file


def made(path: Path, value: float) -> Path:
    write_file(path, {"a": torch.full((3, 4), value)})
    return path


def mark(folder: Path, *paths: Path) -> None:
    (folder / "SYNTHETIC").write_text(synthetic_mark.mark(folder, paths))


def test_a_listed_file_is_marked_under_any_name(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one.safetensors", 1), made(tmp_path / "other.safetensors", 2)
    assert not is_marked_synthetic(one)
    mark(tmp_path, one)
    assert is_marked_synthetic(one) and not is_marked_synthetic(other)
    with CheckpointFile(one) as file:
        assert file.synthetic and "h3runtime_synthetic" not in file.metadata
    moved = one.rename(tmp_path / "renamed.safetensors")
    assert is_marked_synthetic(moved)
    other.rename(one)
    assert not is_marked_synthetic(one), "real weights under the name of made-up ones"


def test_marks_of_other_files_stay(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one.safetensors", 1), made(tmp_path / "other.safetensors", 2)
    for _ in range(2):
        mark(tmp_path, one)
        mark(tmp_path, other)
    assert is_marked_synthetic(one) and is_marked_synthetic(other)
    assert len([line for line in (tmp_path / "SYNTHETIC").read_text().splitlines() if line[0] != "#"]) == 2


def test_anything_else_is_no_mark(tmp_path: Path) -> None:
    one = made(tmp_path / "one.safetensors", 1)
    for content in (b"", b"\xff\xfe\0", b"# only words\n", one.name.encode()):
        (tmp_path / "SYNTHETIC").write_bytes(content)
        assert not is_marked_synthetic(one)
    assert not is_marked_synthetic(tmp_path) and not is_marked_synthetic(tmp_path / "none")

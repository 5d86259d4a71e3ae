"""Files appear together or not at all, and nothing that is there is lost unasked."""

import errno
import os
from pathlib import Path

import pytest

from h3runtime.checkpoint.synthetic.staging import staged
from h3runtime.errors import DiskFull, InvalidRequest, OutputExists


def test_everything_moves_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "set"
    with staged(folder, {"a": None}, overwrite=False) as stage:
        (stage / "a").write_text("1")
        (stage / "inner").mkdir()
        (stage / "inner" / "b").write_text("2")
        assert [p.name for p in folder.iterdir()] == [stage.name]
    assert {str(p.relative_to(folder)) for p in folder.rglob("*")} == {"a", "inner", "inner/b"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(2), ValueError("x"), OSError(errno.EIO, "bad")])
def test_an_early_end_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), staged(tmp_path / "new" / "set", {}, overwrite=False) as stage:
        (stage / "a").write_text("1")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_early_end_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(ValueError, match="x"), staged(tmp_path, {"a": None}, overwrite=True) as stage:
        (stage / "a").write_text("1")
        raise ValueError("x")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "mine"}


def test_a_full_disk_is_typed(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="full"), staged(tmp_path, {}, overwrite=False):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_in_the_way_is_listed(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("four")
    (tmp_path / "d").mkdir()
    names = {"a": None, "b": 4, "c": 5, "d": None, "free": None}
    with pytest.raises(OutputExists) as caught, staged(tmp_path, names, overwrite=False):
        raise AssertionError
    assert [o.field for o in caught.value.offences] == ["a", "c", "d"]
    assert "--overwrite" in caught.value.offences[0].legal
    with staged(tmp_path, names, overwrite=True) as stage:
        (stage / "a").write_text("new")
    assert (tmp_path / "a").read_text() == "new" and (tmp_path / "b").read_text() == "four"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(InvalidRequest, match="not a folder"), staged(tmp_path / "a", {}, overwrite=True):
        raise AssertionError


def test_what_a_killed_process_left_goes_and_what_another_one_makes_stays(tmp_path: Path) -> None:
    def age(path: Path) -> None:
        os.utime(path, (0, 0))

    left = tmp_path / ".synth-left"
    left.mkdir()
    (left / "half").write_text("12 GB")
    fresh = tmp_path / ".synth-fresh"
    fresh.mkdir()
    age(left)
    with staged(tmp_path, {}, overwrite=False) as other:
        age(other)
        with staged(tmp_path, {}, overwrite=False) as stage:
            assert {p.name for p in tmp_path.iterdir()} == {fresh.name, other.name, stage.name}

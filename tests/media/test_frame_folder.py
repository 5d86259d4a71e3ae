"""Folders of pictures: their order, what is passed over, what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from h3runtime.errors import BadMedia
from h3runtime.media.frame_folder import _order, each_picture, frame_paths
from h3runtime.media.frames import write_frames
from tests.clips import moving


def test_frames_come_back_as_decode_wrote_them(tmp_path: Path) -> None:
    write_frames([moving(12)], tmp_path / "f")
    assert np.array_equal(np.stack(list(each_picture(frame_paths(tmp_path / "f", "a"), "a"))), moving(12))


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1))
def test_numbers_are_read_as_numbers(numbers: list[int]) -> None:
    names = [Path(f"frame_{number}.png") for number in numbers]
    assert [path.name for path in sorted(names, key=_order)] == [f"frame_{number}.png" for number in sorted(numbers)]


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    for name in ("b10.PNG", "b9.png", "a.jpg", ".hidden.png", "notes.txt", "12"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in frame_paths(tmp_path, "a")] == ["a.jpg", "b9.png", "b10.PNG"]


def test_no_pictures_are_typed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadMedia, match="no pictures"):
        frame_paths(tmp_path, "a")


def test_a_picture_of_another_size_is_named(tmp_path: Path) -> None:
    for index, size in enumerate([(20, 16), (20, 16), (16, 20)]):
        Image.new("RGB", size).save(tmp_path / f"{index}.png")
    with pytest.raises(BadMedia, match=r"2\.png is 16x20, not 20x16"):
        list(each_picture(frame_paths(tmp_path, "a"), "a"))


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (20, 16)).save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes((tmp_path / "0.png").read_bytes()[:40])
    with pytest.raises(BadMedia, match=r"a, 1\.png"):
        list(each_picture(frame_paths(tmp_path, "a"), "a"))

"""A folder of frames is there whole or not at all."""

import errno
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from h3runtime.errors import JobDiskFull, OutputExists
from h3runtime.media.frames import frame_name, write_frames


def test_frames_come_back_as_they_went_and_sort_by_name(tmp_path: Path, frames) -> None:
    count = write_frames((frames[i : i + 5] for i in range(0, 22, 5)), tmp_path / "deep" / "frames")
    paths = sorted((tmp_path / "deep" / "frames").iterdir())
    assert count == len(paths) == 22 and paths[0].name == "frame_00000.png" and paths[21].name == frame_name(21)
    assert np.array_equal(np.stack([np.asarray(Image.open(path)) for path in paths]), frames)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["frames"]


def test_an_empty_folder_is_filled_and_a_used_one_refused(tmp_path: Path, frames) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    assert write_frames([frames[:1]], folder) == 1
    with pytest.raises(OutputExists):
        write_frames([frames], folder)
    assert len(list(folder.iterdir())) == 1


def test_a_decoder_that_fails_leaves_nothing(tmp_path: Path, frames) -> None:
    def chunks():
        yield frames[:5]
        raise KeyError("mine")

    with pytest.raises(KeyError):
        write_frames(chunks(), tmp_path / "frames")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, frames, monkeypatch) -> None:
    def full(*_, **__) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(JobDiskFull):
        write_frames([frames], tmp_path / "frames")
    assert list(tmp_path.iterdir()) == []

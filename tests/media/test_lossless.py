"""What a tail keeps is what is read back, bit for bit; an unfinished one leaves nothing."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from h3runtime.core import ClipInput, MediaFile, SoundInput
from h3runtime.errors import EncoderFailed
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from h3runtime.media.lossless import LosslessWriter
from h3runtime.media.probe import probe_clip


def noise(frames: int, width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(frames).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def waveform(samples: int) -> NDArray[np.float32]:
    """Values far beyond full scale, as far as a sound may go, denormal ones and both zeros too."""
    wide = np.random.default_rng(samples).normal(0, 2, (2, samples)).astype(np.float32)
    wide[:, :4] = [[0.0, -0.0, 1e-40, 99.0][:samples]] * 2
    return wide


def write(path: Path, frames: NDArray[np.uint8], sound: NDArray[np.float32], piece: int = 17) -> None:
    height, width = frames.shape[1:3]
    writer = LosslessWriter(path, width, height, sound)
    for begin in range(0, len(frames), piece):
        writer.put(frames[begin : begin + piece])
    writer.finish()
    writer.abandon()


def read(path: Path, first: int, frames: int, width: int, height: int) -> NDArray[np.uint8]:
    clip = ClipInput(MediaFile(path, "continue_from"), first, frames)
    return np.stack(list(clip_frames(clip, width, height, "cover")))


@pytest.mark.parametrize(("frames", "width", "height"), [(22, 64, 96), (5, 64, 64), (56, 96, 64), (1, 66, 34)])
def test_frames_and_samples_come_back_bit_for_bit(tmp_path: Path, frames: int, width: int, height: int) -> None:
    path = tmp_path / "tail.mkv"
    pictures, sound = noise(frames, width, height), waveform(-(-frames * 32_000 // 24))
    write(path, pictures, sound)
    assert np.array_equal(read(path, 0, frames, width, height), pictures)
    heard = read_sound_in(SoundInput(MediaFile(path, "continue_from")))
    assert np.array_equal(heard.view(np.uint32), sound.view(np.uint32))
    assert [entry.name for entry in tmp_path.iterdir()] == ["tail.mkv"]


def test_the_end_of_a_tail(tmp_path: Path) -> None:
    path = tmp_path / "tail.mkv"
    pictures, sound = noise(56, 64, 64), waveform(74_666)
    write(path, pictures, sound)
    assert np.array_equal(read(path, 34, 22, 64, 64), pictures[34:])
    heard = read_sound_in(SoundInput(MediaFile(path, "continue_from"), 34 / 24, 22 / 24))
    assert np.array_equal(heard, sound[:, round(32_000 * 34 / 24) :])


def test_a_tail_without_sound(tmp_path: Path) -> None:
    path = tmp_path / "tail.mkv"
    write(path, noise(5, 64, 64), np.zeros((2, 0), np.float32))
    assert probe_clip(path).sound is None and probe_clip(path).frames == 5


def test_nothing_is_there_before_the_end_nor_after_giving_up(tmp_path: Path) -> None:
    path = tmp_path / "tail.mkv"
    path.write_bytes(b"an older tail")
    writer = LosslessWriter(path, 64, 64, waveform(800))
    writer.put(noise(5, 64, 64))
    assert path.read_bytes() == b"an older tail"
    writer.abandon()
    writer.abandon()
    assert [entry.name for entry in tmp_path.iterdir()] == ["tail.mkv"]
    assert path.read_bytes() == b"an older tail"


def test_a_folder_that_is_gone_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(EncoderFailed, match="can't be written") as caught:
        LosslessWriter(tmp_path / "gone" / "tail.mkv", 64, 64, waveform(800))
    assert str(tmp_path) not in str(caught.value)


def test_frames_of_another_size_are_a_bug(tmp_path: Path) -> None:
    writer = LosslessWriter(tmp_path / "tail.mkv", 64, 64, waveform(800))
    with pytest.raises(ValueError, match="expected uint8"):
        writer.put(noise(5, 64, 32))
    writer.abandon()
    assert not list(tmp_path.iterdir())

"""The end of a clip as it is kept for one that continues: the very frames and samples, whole or not at all."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from h3runtime.core import ClipInput, MediaFile, SoundInput, TailRequest
from h3runtime.engine import tail as module
from h3runtime.engine.tail import Tail
from h3runtime.errors import EncoderFailed, JobDiskFull
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from h3runtime.media.joining import sample_at
from h3runtime.media.mux import ClipShape
from tests.clips import moving

SHAPE = ClipShape(48, 32, 39)
FRAMES = moving(39)
SOUND = np.random.default_rng(1).normal(0, 0.5, (2, 52_400)).astype(np.float32)


def chunks(frames: np.ndarray = FRAMES) -> Iterator[np.ndarray]:
    """As the decoder gives them: through a buffer that it uses again."""
    buffer = np.empty((17, *frames.shape[1:]), np.uint8)
    for start in range(0, len(frames), 17):
        count = len(frames[start : start + 17])
        buffer[:count] = frames[start : start + 17]
        yield buffer[:count]


def keep(tmp_path: Path, frames: int) -> Path:
    path = tmp_path / "tails" / "job.mkv"
    path.parent.mkdir()
    with Tail(TailRequest(path, frames), tmp_path, SHAPE, SOUND) as tail:
        for chunk in chunks():
            tail.put(chunk)
        tail.finish()
        assert not path.exists()
        tail.publish()
    return path


@pytest.mark.parametrize(("asked", "kept"), [(22, 22), (5, 5), (39, 39), (56, 39), (17, 17)])
def test_the_last_frames_and_their_sound_come_back_bit_for_bit(tmp_path: Path, asked: int, kept: int) -> None:
    path = keep(tmp_path, asked)
    file = MediaFile(path, "continue_from")
    got = np.stack(list(clip_frames(ClipInput(file, 0, kept), SHAPE.width, SHAPE.height, "cover")))
    assert np.array_equal(got, FRAMES[-kept:])
    # 39 frames are 52,000 samples; the decoder's last 400 belong to no frame.
    assert np.array_equal(read_sound_in(SoundInput(file)), SOUND[:, sample_at(39 - kept) : 52_000])
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["job.mkv"]


def test_without_a_request_nothing_is_kept_and_no_thread_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Worker", None)
    with Tail(None, tmp_path, SHAPE, SOUND) as tail:
        for chunk in chunks():
            tail.put(chunk)
        tail.finish()
        tail.publish()
    assert list(tmp_path.iterdir()) == []


def test_a_clip_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    request = TailRequest(tmp_path / "a.mkv", 39)
    with pytest.raises(ValueError, match="stop"), Tail(request, tmp_path, SHAPE, SOUND) as tail:
        tail.put(FRAMES[:17])
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_an_older_tail_of_that_name_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.mkv").write_bytes(b"older")
    with Tail(TailRequest(tmp_path / "a.mkv", 5), tmp_path, SHAPE, SOUND) as tail:
        tail.put(FRAMES)
        tail.finish()
        assert (tmp_path / "a.mkv").read_bytes() == b"older"
    assert [p.name for p in tmp_path.iterdir()] == ["a.mkv"]


class Broken:
    """A writer that fails as told at its second chunk."""

    fault: BaseException = OSError(errno.ENOSPC, "No space left on device")

    def __init__(self, *_: object) -> None:
        self.puts = 0

    def put(self, _: np.ndarray) -> None:
        self.puts += 1
        if self.puts == 2:
            raise self.fault

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fault", "told"),
    [(OSError(errno.ENOSPC, "full"), JobDiskFull), (EncoderFailed("odd"), EncoderFailed), (MemoryError(), MemoryError)],
)
def test_what_went_wrong_in_the_thread_is_told_in_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, told: type[BaseException]
) -> None:
    monkeypatch.setattr(Broken, "fault", fault)
    monkeypatch.setattr(module, "LosslessWriter", Broken)
    with pytest.raises(told), Tail(TailRequest(tmp_path / "a.mkv", 39), tmp_path, SHAPE, SOUND) as tail:
        for _ in range(100):
            tail.put(FRAMES[:1])
        tail.finish()
    assert list(tmp_path.iterdir()) == []


def test_the_decoder_does_not_wait_for_a_slow_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = threading.Event()

    class Slow(Broken):
        def put(self, _: np.ndarray) -> None:
            assert given.wait(10), "the next chunk waits for this one to be written"

    monkeypatch.setattr(module, "LosslessWriter", Slow)
    with Tail(TailRequest(tmp_path / "a.mkv", 39), tmp_path, SHAPE, SOUND) as tail:
        for start in (0, 17):
            tail.put(FRAMES[start : start + 17])
        given.set()
        tail.finish()

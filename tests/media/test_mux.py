"""Clips hold what was promised, on every ffmpeg; an encoder that misbehaves leaves a typed error and nothing else."""

import errno
import hashlib
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from h3runtime.core import EncodeSettings
from h3runtime.errors import (
    EncoderFailed,
    InvalidRequest,
    JobCancelled,
    JobDiskFull,
    JobTimeout,
    NumericalError,
    OutputExists,
)
from h3runtime.media import delivery, mux, process
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.mux import QUEUED_CHUNKS, ClipShape, ClipWriter, Limits
from h3runtime.media.probe import probe_clip, read_frames, read_sound
from tests.media.conftest import Clock, still_running

SHORT = Limits(stall=0.4, finish=5.0)
"""For encoders that stall; whoever must get on has the usual limits, on a busy machine too."""
WEBM = EncodeSettings("webm", "vp9", audio_codec="opus", sample_rate=48_000)


def write(tool: FFmpeg, place: Path, frames, sound=None, chunk: int = 5, limits: Limits = SHORT, **options):
    shape = ClipShape(frames.shape[2], frames.shape[1], len(frames))
    with ClipWriter(tool, place / "out" / "a.mp4", place / "scratch", shape, sound, limits=limits, **options) as writer:
        for start in range(0, len(frames), chunk):
            writer.put(frames[start : start + chunk])
        return writer.finish()


def nothing_out(place: Path) -> bool:
    return list((place / "out").iterdir()) == []


# what comes out


def test_a_sound_that_is_awaited_changes_no_byte(tool, place, frames, sound) -> None:
    wanted = write(tool, place, frames, sound, limits=Limits()).sha256
    shape = ClipShape(frames.shape[2], frames.shape[1], len(frames))
    output = place / "out" / "b.mp4"
    early = ClipWriter(tool, output, place / "scratch", shape, None, awaits_sound=True)
    with pytest.raises(ValueError, match="before the sound"), early as writer:
        writer.put(frames[:5])
    with ClipWriter(tool, output, place / "scratch", shape, None, awaits_sound=True) as writer:
        writer.hear(sound)
        writer.put(frames)
        assert writer.finish().sha256 == wanted


def test_a_clip_holds_exactly_what_was_promised(tool, place, frames, sound) -> None:
    clip = write(tool, place, frames, sound, limits=Limits())
    facts = probe_clip(clip.output)
    assert (facts.width, facts.height, facts.frames, facts.rate) == (64, 48, 22, Fraction(24))
    assert (facts.codec, facts.profile, facts.pixel_format) == ("h264", "High", "yuv420p")
    assert (facts.primaries, facts.transfer, facts.matrix, facts.range) == (1, 13, 1, 1)
    assert facts.sound is not None
    assert (facts.sound.codec, facts.sound.rate, facts.sound.channels) == ("aac", 32000, 2)
    body = clip.output.read_bytes()
    assert (clip.bytes, clip.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert (clip.frames, clip.samples, clip.video_encoder) == (22, 29334, tool.video_encoder("h264"))
    assert body.index(b"moov") < body.index(b"mdat")


def test_the_sound_is_whole_and_in_place(tool, place, frames, sound) -> None:
    heard, rate = read_sound(write(tool, place, frames, sound, limits=Limits()).output)
    assert rate == 32000 and abs(heard.shape[1] - 29334) <= 1024
    # Away from both ends AAC keeps a tone within a few per cent; 16 samples early or late is a tenth of its period.
    for lag, bound in ((0, 0.1), (16, 0.5), (-16, 0.5)):
        heard_there, given = heard[:, 4096 + lag : 24576 + lag], sound[:, 4096:24576]
        distance = np.linalg.norm(heard_there - given) / np.linalg.norm(given)
        assert distance < bound if lag == 0 else distance > bound


@pytest.mark.parametrize(("frame_count", "samples"), [(5, 6400), (124, 165334)])
def test_sound_and_picture_end_together(tools, place, frame_count: int, samples: int) -> None:
    pictures = np.zeros((frame_count, 32, 32, 3), np.uint8)
    sound = np.zeros((2, round(frame_count / 24 * 40) * 800), np.float32)
    clip = write(tools["path"], place, pictures, sound, limits=Limits())
    facts = probe_clip(clip.output)
    assert clip.samples == samples and facts.frames == frame_count
    assert facts.sound is not None and abs(facts.sound.samples - samples) <= 1024


def test_frames_arrive_in_order_and_in_colour(tool, place, frames) -> None:
    got = read_frames(write(tool, place, frames, limits=Limits(), encode=EncodeSettings(crf=1)).output)
    assert got.shape == frames.shape
    difference = np.abs(got.astype(int) - frames.astype(int)).mean(axis=(1, 2, 3))
    assert difference.max() < 2


def test_two_runs_are_identical_and_another_clip_differs(tools, place, frames, sound) -> None:
    def run(pictures) -> tuple[np.ndarray, np.ndarray]:
        output = write(tools["path"], place, pictures, sound, limits=Limits(), overwrite=True).output
        return read_frames(output), read_sound(output)[0]

    (a, heard_a), (b, heard_b), (c, _) = run(frames), run(frames), run(frames[::-1])
    assert np.array_equal(a, b) and np.array_equal(heard_a, heard_b) and not np.array_equal(a, c)


def test_the_caller_may_reuse_its_buffer(tools, place, frames) -> None:
    buffer = np.empty_like(frames[:5])
    shape = ClipShape(64, 48, 20)
    with ClipWriter(tools["path"], place / "out" / "a.mp4", place / "scratch", shape, None) as writer:
        for start in range(0, 20, 5):
            buffer[:] = frames[start : start + 5]
            writer.put(buffer)
            buffer[:] = 0
        got = read_frames(writer.finish().output)
    assert np.abs(got.astype(int) - frames[:20].astype(int)).mean() < 4


def test_mono_stays_mono(tools, place, frames, sound) -> None:
    facts = probe_clip(write(tools["path"], place, frames, sound[:1], limits=Limits()).output)
    assert facts.sound is not None and facts.sound.channels == 1


def test_the_second_h264_encoder_works(tools, place, frames, sound) -> None:
    bundled = tools["bundled"]
    assert "libopenh264" in bundled.encoders
    other = FFmpeg(bundled.path, bundled.version, frozenset({"libopenh264", "aac"}), "a test")
    clip = write(other, place, frames, sound, limits=Limits())
    facts = probe_clip(clip.output)
    assert clip.video_encoder == "libopenh264" and facts.frames == 22
    assert (facts.primaries, facts.transfer, facts.matrix, facts.range) == (1, 13, 1, 1)
    with pytest.raises(InvalidRequest, match=r"format\.crf"):
        write(other, place, frames, overwrite=True, encode=EncodeSettings(crf=20))


def test_bit_rate_and_crf_reach_the_encoder(tools, place, sound) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (22, 48, 64, 3), dtype=np.uint8)

    def size(**encode) -> int:
        settings = EncodeSettings(**encode)
        return write(tools["path"], place, noise, sound, limits=Limits(), overwrite=True, encode=settings).bytes

    assert size(crf=40) < size() / 2
    assert size(audio_bitrate=32_000) < size() - 3000


def test_memory_does_not_grow_with_the_clip(tools, place) -> None:
    chunk = np.zeros((17, 128, 128, 3), np.uint8)
    shape = ClipShape(128, 128, 17 * 30)
    tracemalloc.start()
    try:
        with ClipWriter(tools["path"], place / "out" / "a.mp4", place / "scratch", shape, None) as writer:
            for _ in range(30):
                writer.put(chunk)
            assert writer.finish().frames == 510
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The queue, one in the writer's hands, one being put, and small change.
    assert peak < (QUEUED_CHUNKS + 2.5) * chunk.nbytes


# names


def test_an_existing_file_is_refused_before_any_work(fake, place, frames) -> None:
    (place / "out" / "a.mp4").write_bytes(b"mine")
    with pytest.raises(OutputExists):
        write(fake("exit 1"), place, frames)
    assert (place / "out" / "a.mp4").read_bytes() == b"mine" and not (place / "group").exists()


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(tools, place, frames, links: bool, monkeypatch) -> None:
    if not links:
        monkeypatch.setattr(delivery.os, "link", _no_links)
    with ClipWriter(tools["path"], place / "out" / "a.mp4", place / "scratch", ClipShape(64, 48, 22), None) as writer:
        writer.put(frames)
        (place / "out" / "a.mp4").write_bytes(b"theirs")
        with pytest.raises(OutputExists):
            writer.finish()
    assert (place / "out" / "a.mp4").read_bytes() == b"theirs"


def _no_links(*_) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_file_systems_without_hard_links(tools, place, frames, monkeypatch) -> None:
    monkeypatch.setattr(delivery.os, "link", _no_links)
    assert probe_clip(write(tools["path"], place, frames, limits=Limits()).output).frames == 22


def test_overwrite_replaces(tools, place, frames) -> None:
    (place / "out" / "a.mp4").write_bytes(b"old")
    assert probe_clip(write(tools["path"], place, frames, limits=Limits(), overwrite=True).output).frames == 22


# bad encoders


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("echo 'at /srv/secret/clip.mp4: no' >&2; exit 3", EncoderFailed, r"status 3: at \(file\): no"),
        ("head -c 20000 >/dev/null; echo boom >&2; exit 1", EncoderFailed, "status 1: boom"),
        ("cat >/dev/null; echo late >&2; exit 9", EncoderFailed, "status 9: late"),
        ("head -c 20000 >/dev/null; kill -SEGV $$", EncoderFailed, "signal 11"),
        ("sleep 600 & wait", JobTimeout, "no progress"),
        ("exec 2>&-; sleep 600", JobTimeout, "no progress"),
        ("cat >/dev/null; sleep 600", JobTimeout, "no progress"),
        ("trap '' TERM INT HUP PIPE; cat >/dev/null; while :; do sleep 1; done", JobTimeout, "no progress"),
        ("trap '' TERM INT HUP PIPE; while :; do sleep 1; done", JobTimeout, "no progress"),
        ("cat >/dev/null; echo garbage > \"$clip\"", EncoderFailed, "can't be read"),
        ("cat >/dev/null", EncoderFailed, "can't be read"),
        ("cat >/dev/null; (sleep 600 & disown); exit 4", EncoderFailed, "status 4"),
        ("yes noise | head -c 1000000 >&2; echo >&2; echo end >&2; exit 5", EncoderFailed, "status 5: end"),
        ("cat >/dev/null; echo 'av_write: No space left on device' >&2; exit 228", JobDiskFull, "disk is full"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else None,
)  # fmt: skip
def test_a_bad_encoder_ends_the_clip_and_nothing_else(fake, place, frames, sound, body, error, words) -> None:
    started = time.monotonic()
    with pytest.raises(error, match=words) as caught:
        write(fake(body), place, frames, sound, limits=SHORT if error is JobTimeout else Limits())
    assert time.monotonic() - started < 50
    assert nothing_out(place) and str(place) not in str(caught.value) and caught.value.stage == "mux"


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("echo 'Svt[error]: deinit' >&2; exit 3", EncoderFailed, "status 3$"),
        ("cat >/dev/null; echo 'why' >&2; echo 'Svt[info]: done' >&2; exit 3", EncoderFailed, "status 3: why"),
        ("sleep 600 & wait", JobTimeout, "no progress"),
        ("cat >/dev/null; sleep 600", JobTimeout, "no progress"),
        ("head -c 20000 >/dev/null; kill -SEGV $$", EncoderFailed, "signal 11"),
        ("cat >/dev/null; echo garbage > \"$clip\"", EncoderFailed, "can't be read"),
        ("cat >/dev/null; echo 'av_write: No space left on device' >&2; exit 228", JobDiskFull, "disk is full"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else None,
)  # fmt: skip
def test_a_bad_encoder_of_another_container_and_rate(fake, place, frames, sound, body, error, words) -> None:
    with pytest.raises(error, match=words):
        limits = SHORT if error is JobTimeout else Limits()
        write(fake(body), place, frames, sound, limits=limits, encode=replace(WEBM, fps=60))
    assert nothing_out(place)


def test_another_container_is_stopped_and_counted_as_well(fake, tools, place, frames) -> None:
    asked = iter([False] * 5)
    with pytest.raises(JobCancelled):
        body = "cat >/dev/null; sleep 600"
        write(fake(body), place, frames, limits=Limits(), encode=WEBM, should_stop=lambda: next(asked, True))
    # What it hasn't read when it has its 20 is read for it, or the rest may find nobody there.
    cut = fake(f'"{tools["path"].path}" "${{@:1:$#-1}}" -frames:v 20 "$clip"; cat >/dev/null')
    with pytest.raises(EncoderFailed, match="20 of 28 frames"):
        write(cut, place, frames, limits=Limits(), encode=replace(WEBM, fps=30))
    assert nothing_out(place)


def test_an_encoder_that_closes_its_input_and_lingers(fake, place, frames, monkeypatch) -> None:
    monkeypatch.setattr(process, "LAST_WORDS", 0.3)
    with pytest.raises(EncoderFailed, match="stopped reading"):
        write(fake("head -c 9000 >/dev/null; exec 0<&-; sleep 600"), place, frames, limits=Limits())
    assert nothing_out(place)


def test_an_encoder_that_gets_on_gives_signs_of_life(fake, place, frames, monkeypatch) -> None:
    monkeypatch.setattr(mux, "SIGN_SECONDS", 0.2)
    enough = place / "enough"
    body = f'cat >/dev/null; until [ -e "{enough}" ]; do echo x >> "$clip"; sleep 0.05; done; exit 3'

    def sign() -> None:
        signs.append(time.monotonic())
        if len(signs) == 3:
            enough.touch()

    signs: list[float] = []
    shape = ClipShape(frames.shape[2], frames.shape[1], len(frames))
    with ClipWriter(fake(body), place / "out" / "a.mp4", place / "scratch", shape, None) as writer:
        writer.put(frames)
        with pytest.raises(EncoderFailed, match="status 3"):
            writer.finish(sign)
    assert len(signs) >= 3
    assert all(after - before >= 0.2 for before, after in pairwise(signs))


def test_an_encoder_that_is_busy_for_ever(fake, place, frames) -> None:
    body = 'cat >/dev/null; while :; do echo x >> "$clip"; sleep 0.05; done'
    with pytest.raises(JobTimeout):
        write(fake(body), place, frames, limits=Limits(stall=5.0, finish=0.5))
    assert nothing_out(place)


def test_a_slow_decoder_is_not_a_stalled_encoder(tools, place, frames, monkeypatch) -> None:
    shape, limits, clock = ClipShape(64, 48, 22), Limits(stall=60), Clock()
    monkeypatch.setattr(process, "time", clock)
    with ClipWriter(tools["path"], place / "out" / "a.mp4", place / "scratch", shape, None, limits=limits) as writer:
        writer.put(frames[:5])
        clock.ahead = 100.0
        writer.put(frames[5:])
        assert writer.finish().frames == 22


def test_a_death_between_chunks_is_seen_at_the_next(fake, place, frames) -> None:
    shape = ClipShape(64, 48, 22)
    with ClipWriter(fake("exit 7"), place / "out" / "a.mp4", place / "scratch", shape, None) as writer:
        group = place / "group"
        # It is there before it is written, and written before the encoder ends.
        while not (group.exists() and group.read_text().strip()) or still_running(group.read_text().strip()):
            time.sleep(0.01)
        # At the first, unless the thread that waits for the encoder is looking just then; it can't take all of them.
        with pytest.raises(EncoderFailed, match="status 7"):
            for index in range(22):
                writer.put(frames[index : index + 1])


def test_a_program_that_cannot_be_started(place, frames) -> None:
    with pytest.raises(EncoderFailed):
        write(FFmpeg(place / "no-such-program", "0", frozenset({"libx264"}), "a test"), place, frames)
    assert nothing_out(place)


def test_missing_frames_in_the_file_are_found(tools, fake, place, frames) -> None:
    real = tools["path"].path
    cut = fake(f'"{real}" "${{@:1:$#-1}}" -frames:v 20 "$clip"; cat >/dev/null')
    with pytest.raises(EncoderFailed, match="20 of 22 frames"):
        write(cut, place, frames, limits=Limits())
    assert nothing_out(place)


@pytest.mark.parametrize("which", ["path", "bundled"])
def test_a_full_disk_as_ffmpeg_itself_reports_it(tools, fake, place, which: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (22, 128, 128, 3), dtype=np.uint8)
    full = fake(f'exec "{tools[which].path}" "${{@:1:$#-1}}" -y /dev/full')
    with pytest.raises(JobDiskFull):
        write(full, place, noise, limits=Limits())
    assert nothing_out(place)


def test_a_full_disk_while_the_sound_is_written(tools, place, frames, sound, monkeypatch) -> None:
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(JobDiskFull):
        write(tools["path"], place, frames, sound)
    assert nothing_out(place)


def test_no_path_is_told_even_with_spaces(fake, place, frames) -> None:
    (place / "scratch" / "my clips").mkdir()
    tool = fake('echo "opening $clip: no" >&2; exit 2')
    shape = ClipShape(64, 48, 22)
    with (
        pytest.raises(EncoderFailed, match=r"status 2: opening clip\.mp4: no$"),
        ClipWriter(tool, place / "out" / "a.mp4", place / "scratch" / "my clips", shape, None) as writer,
    ):
        writer.put(frames)
        writer.finish()
    (place / "scratch" / "my clips").rmdir()


# callers who leave


def test_a_killed_writer_takes_ffmpeg_along(fake, tools, place) -> None:
    """SIGKILL leaves us no word to say; the broken pipe ends ffmpeg. Its scratch folder is the restart's to sweep."""
    tool = fake(f'exec "{tools["path"].path}" "$@"')
    code = f"""
import os, signal, pathlib, numpy as np
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.mux import ClipShape, ClipWriter
tool = FFmpeg(pathlib.Path({str(tool.path)!r}), "fake", frozenset({{"libx264"}}), "a test")
place = pathlib.Path({str(place)!r})
with ClipWriter(tool, place / "out" / "a.mp4", place / "scratch", ClipShape(64, 48, 22), None) as writer:
    writer.put(np.zeros((5, 48, 64, 3), np.uint8))
    while not (place / "group").exists() or not (place / "group").read_text().strip():
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert still_running((place / "group").read_text().strip(), 10) == []
    assert nothing_out(place)
    for folder in (place / "scratch").iterdir():
        shutil.rmtree(folder)


@pytest.mark.parametrize("body", ["cat >/dev/null; sleep 600", "sleep 600"])
def test_stopping(fake, place, frames, body: str) -> None:
    asked = iter([False] * 5)
    with pytest.raises(JobCancelled):
        write(fake(body), place, frames, limits=Limits(), should_stop=lambda: next(asked, True))
    assert nothing_out(place)


@pytest.mark.parametrize("body", ["cat >/dev/null; sleep 600", "sleep 600 & wait"])
def test_an_exception_in_the_block_passes_through(fake, place, frames, body: str) -> None:
    shape = ClipShape(64, 48, 22)
    with (
        pytest.raises(KeyError, match="mine"),
        ClipWriter(fake(body), place / "out" / "a.mp4", place / "scratch", shape, None) as writer,
    ):
        writer.put(frames[:5])
        raise KeyError("mine")
    assert nothing_out(place)


def test_abort_may_be_called_again_and_after_finish(tools, place, frames) -> None:
    shape = ClipShape(64, 48, 22)
    with ClipWriter(tools["path"], place / "out" / "a.mp4", place / "scratch", shape, None) as writer:
        writer.put(frames)
        writer.finish()
        writer.abort()
        writer.abort()
    assert probe_clip(place / "out" / "a.mp4").frames == 22


# callers who are wrong


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_is_not_finite_never_reaches_the_encoder(fake, place, frames, sound, value) -> None:
    sound[1, 77] = value
    with pytest.raises(NumericalError, match="1 of"):
        write(fake("exit 0"), place, frames, sound)
    assert nothing_out(place) and not (place / "group").exists()


@pytest.mark.parametrize(
    "chunk",
    [
        np.zeros((5, 64, 48, 3), np.uint8),
        np.zeros((5, 48, 64, 4), np.uint8),
        np.zeros((48, 64, 3), np.uint8),
        np.zeros((5, 48, 64, 3), np.float32),
        np.zeros((23, 48, 64, 3), np.uint8),
    ],
    ids=["turned", "alpha", "one frame", "float", "too many"],
)
def test_a_wrong_chunk_is_refused(tools, place, chunk) -> None:
    shape = ClipShape(64, 48, 22)
    with (
        pytest.raises(ValueError, match=r"expected|promised"),
        ClipWriter(tools["path"], place / "out" / "a.mp4", place / "scratch", shape, None) as writer,
    ):
        writer.put(chunk)
    assert nothing_out(place)


def test_too_few_frames_are_refused(tools, place, frames) -> None:
    shape = ClipShape(64, 48, 22)
    with (
        pytest.raises(ValueError, match="21 frames, 22 were promised"),
        ClipWriter(tools["path"], place / "out" / "a.mp4", place / "scratch", shape, None) as writer,
    ):
        writer.put(frames[:21])
        writer.finish()
    assert nothing_out(place)

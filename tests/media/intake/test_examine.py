"""What is told of media by their packets, what is found in them, and every way in which they are refused."""

import stat
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pillow_heif
import pytest
import soundfile
from PIL import Image

from h3runtime.errors import BadMedia, InternalError
from h3runtime.media.intake.examine import Ask, Limits, Measured, measure, verify
from tests.media.conftest import still_running
from tests.media.made import damage, make_clip, make_sound, picture, tone

Answers = dict[str, Measured | BadMedia]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One file of each kind, named after what it is."""
    at = tmp_path_factory.mktemp("media")
    noise = np.random.default_rng(0).integers(0, 256, (12, 96, 128, 3), np.uint8)
    whole = make_clip(at / "noise.mp4", times=range(12), pictures=noise, width=128, height=96)
    damage(whole)
    (at / "cut.mp4").write_bytes(_front(whole, at)[: whole.stat().st_size * 2 // 3])
    make_clip(at / "slow.mp4", times=range(3), base=Fraction(1))
    make_clip(at / "fast.mp4", times=range(30), base=Fraction(1, 60))
    make_clip(at / "ticks.mp4", times=[i * 3750 + i % 7 for i in range(30)], base=Fraction(1, 90_000))
    make_clip(at / "ntsc.mkv", times=range(24), base=Fraction(1001, 24_000))
    make_clip(at / "turned.mov", times=range(3), turned=-90, aspect=Fraction(4, 3))
    make_clip(at / "heard.mp4", times=range(24), sound=tone(1.0, 48_000))
    make_clip(at / "heard.webm", "libvpx-vp9", times=range(24), sound=tone(1.0, 48_000), sound_codec="libopus")
    make_sound(at / "sound.mp3", "libmp3lame", tone(2.0, 44_100)[None], 44_100)
    soundfile.write(at / "sound.wav", np.zeros((16_000, 6)), 8_000, subtype="PCM_24")
    _pictures(at)
    _others(at)
    return at


def _front(clip: Path, at: Path) -> bytes:
    """The same clip with its index at the front, as files for the web have it."""
    front = at / "front.mp4"
    with av.open(str(clip)) as source, av.open(str(front), "w", options={"movflags": "faststart"}) as target:
        copy = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = copy
                target.mux(packet)
    return front.read_bytes()


def _pictures(at: Path) -> None:
    stills = [Image.fromarray(picture(i, 64, 48)) for i in range(3)]
    for kind in ("webp", "gif", "png"):
        stills[0].save(at / f"moving.{kind}", save_all=True, append_images=stills[1:], duration=500)
    stills[0].save(at / "still.png")
    pillow_heif.from_pillow(stills[0]).save(at / "still.heic")


def _others(at: Path) -> None:
    (at / "empty.mp4").write_bytes(b"")
    (at / "page.mp4").write_text("<!doctype html><title>404</title>")
    (at / "list.mp4").write_text(f"ffconcat version 1.0\nfile {at}/slow.mp4\n")
    (at / "list.m3u8").write_text("#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:3,\nslow.mp4\n#EXT-X-ENDLIST\n")
    (at / "list.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nüber\n")
    (at / "wide.srt").write_text("<b>hello", encoding="utf-16")
    (at / "noise.mkv").write_bytes(b"\x1a\x45\xdf\xa3" + bytes(range(256)) * 8)
    with zipfile.ZipFile(at / "other.zip", "w") as archive:
        archive.writestr("a", bytes(5000))
    (at / "folder.mp4").mkdir()


def _answers(folder: Path, judge: Callable[..., list[Measured | BadMedia]]) -> Answers:
    names = [*sorted(entry.name for entry in folder.iterdir()), "gone.mp4"]
    asks = [Ask(folder / name, name, "clip") for name in names]
    asks += [Ask(folder / name, f"sound of {name}", "sound") for name in names]
    return {ask.field: answer for ask, answer in zip(asks, judge(asks), strict=True)}


@pytest.fixture(scope="module")
def told(folder: Path) -> Answers:
    return _answers(folder, measure)


@pytest.fixture(scope="module")
def found(folder: Path) -> Answers:
    return _answers(folder, verify)


CLIPS = {
    "slow.mp4": {"width": 64, "height": 48, "rotation": 0, "rate": 1.0, "pictures": 3, "frames": 72, "seconds": 3.0},
    "fast.mp4": {"width": 64, "height": 48, "rotation": 0, "rate": 60.0, "pictures": 30, "frames": 12, "seconds": 0.5},
    "ticks.mp4": {"pictures": 30, "frames": 30, "seconds": 1.25},
    "ntsc.mkv": {"pictures": 24, "frames": 24},
    "turned.mov": {"width": 48, "height": 85, "rotation": 90, "pictures": 3, "frames": 3},
    "heard.webm": {"pictures": 24, "frames": 24, "rate": 24.0},
    "moving.webp": {"width": 64, "height": 48, "pictures": 3, "frames": 36, "seconds": 1.5, "rate": 2.0},
    "moving.gif": {"pictures": 3, "frames": 36, "rate": 2.0},
    "moving.png": {"pictures": 3, "frames": 36, "rate": 2.0},
}


@pytest.mark.parametrize("name", CLIPS)
def test_clips_are_counted_alike_from_packets_and_pictures(told: Answers, found: Answers, name: str) -> None:
    for answers in (told, found):
        answer = answers[name]
        assert isinstance(answer, Measured) and answer.clip is not None
        figures = asdict(answer.clip)
        assert {key: figures[key] for key in CLIPS[name]} == CLIPS[name]


def test_broadcast_rates_are_told_as_they_are(told: Answers) -> None:
    answer = told["ntsc.mkv"]
    assert isinstance(answer, Measured) and answer.clip is not None
    assert answer.clip.rate == pytest.approx(24_000 / 1001, abs=0.03)


SOUNDS = {
    "sound.mp3": (44_100, 1, 2.0),
    "sound.wav": (8_000, 6, 2.0),
    "heard.mp4": (48_000, 1, 1.0),
    "heard.webm": (48_000, 1, 1.0),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds_and_sound_tracks(told: Answers, found: Answers, name: str) -> None:
    rate, channels, seconds = SOUNDS[name]
    for answers, near in ((told, 0.05), (found, 0.022)):
        answer = answers[f"sound of {name}"]
        assert isinstance(answer, Measured) and answer.sound is not None and answer.clip is None
        assert (answer.sound.rate, answer.sound.channels) == (rate, channels)
        assert answer.sound.seconds == pytest.approx(seconds, abs=near) == answer.sound.samples / rate


def test_a_clip_is_told_with_its_sound(found: Answers) -> None:
    heard, silent = found["heard.mp4"], found["slow.mp4"]
    assert isinstance(heard, Measured) and heard.sound is not None and heard.clip is not None
    assert isinstance(silent, Measured) and silent.sound is None


REFUSED = {
    "empty.mp4": "it is empty",
    "page.mp4": "it is text",
    "list.mp4": "it is text",
    "list.m3u8": "it is text",
    "list.srt": "it is text",
    "wide.srt": "it is text",
    "noise.mkv": "it ",
    "other.zip": "it is not a whole clip or sound of a known kind",
    "still.png": "it is a still picture",
    "still.heic": "it is a still picture",
    "sound.mp3": "it is a sound, not a clip",
    "sound.wav": "it is a sound, not a clip",
    "cut.mp4": "it is cut short",
    "gone.mp4": "it can't be opened",
    "folder.mp4": "it can't be opened",
    "sound of slow.mp4": "it has no sound",
    "sound of moving.webp": "it is an animated picture, not a sound",
    "sound of still.png": "it is a still picture",
}


@pytest.mark.parametrize("field", REFUSED)
def test_other_files_are_refused_for_what_they_are(told: Answers, found: Answers, folder: Path, field: str) -> None:
    for answers in (told, found):
        answer = answers[field]
        assert isinstance(answer, BadMedia)
        assert answer.offences[0].field == field
        assert answer.offences[0].message.startswith(REFUSED[field])
        assert str(folder) not in str(answer)


def test_damaged_pictures_measure_fine_and_are_refused_when_decoded(told: Answers, found: Answers) -> None:
    answer, refusal = told["broken-noise.mp4"], found["broken-noise.mp4"]
    assert isinstance(answer, Measured) and answer.clip is not None and answer.clip.frames == 12
    assert isinstance(refusal, BadMedia) and "damaged" in str(refusal)


def test_lengths_of_references(tmp_path: Path) -> None:
    """A18: 1.9 s, 4 frames, 15.1 s, and a third of 15.5 s."""
    lengths = [1.9, 4 / 24, 15.1, 15.5 / 3]
    for index, seconds in enumerate(lengths):
        blanks = [np.zeros((16, 16, 3), np.uint8)] * round(seconds * 30)
        times, base = range(len(blanks)), Fraction(1, 30)
        make_clip(tmp_path / f"{index}.mp4", "mpeg4", times=times, base=base, width=16, height=16, pictures=blanks)
    answers = measure([Ask(tmp_path / f"{index}.mp4", "references[0].source", "clip") for index in range(4)])
    for answer, seconds in zip(answers, lengths, strict=True):
        assert isinstance(answer, Measured) and answer.clip is not None
        assert answer.clip.frames == round(24 * seconds) and answer.clip.seconds == answer.clip.frames / 24


def test_limits(folder: Path) -> None:
    asks = [Ask(folder / "slow.mp4", "source", "clip"), Ask(folder / "heard.mp4", "references[0].source", "sound")]
    assert [str(answer) for answer in measure(asks, Limits(pixels=1000, measure_seconds=2.0))] == [
        "source: it is longer than 2 s",
        str(measure(asks[1:])[0]),
    ]
    assert "more than 1000 pixels" in str(measure(asks[:1], Limits(pixels=1000))[0])
    assert "more than 2 packets" in str(measure(asks[:1], Limits(packets=2))[0])


def test_what_lies_behind_the_limit_is_not_decoded(folder: Path) -> None:
    broken = Ask(folder / "broken-noise.mp4", "source", "clip")
    (answer,) = verify([broken], Limits(verify_seconds=0.0))
    assert answer == measure([broken])[0]


@pytest.fixture
def sick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A child that aborts at files named crash, hangs at those named hang, and tells its bounds at one named so."""
    script = tmp_path / "child.py"
    script.write_text(
        "import os, resource, subprocess, sys, time\n"
        f"sys.path.insert(0, {str(Path.cwd())!r})\n"
        "from h3runtime.media.intake import containers, examiner\n"
        "whole = examiner.measured\n"
        "def measured(ask, limits):\n"
        "    if 'crash' in ask.path.name: os.abort()\n"
        "    if 'hang' in ask.path.name:\n"
        f"        open({str(tmp_path / 'group')!r}, 'w').write(str(os.getpgid(0)))\n"
        "        subprocess.Popen(['sleep', '600'])\n"
        "        time.sleep(600)\n"
        "    if 'bounds' in ask.path.name:\n"
        "        raise containers.bad_medium(ask.field, str(resource.getrlimit(resource.RLIMIT_AS)[0]))\n"
        "    return whole(ask, limits)\n"
        "examiner.measured = measured\n"
        "examiner.main()\n"
    )
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(fake))
    return tmp_path


def test_a_crash_and_a_hang_are_faults_of_their_own_medium(sick: Path, folder: Path) -> None:
    good = folder / "slow.mp4"
    paths = [good, sick / "crash.mp4", good, sick / "hang.mp4", sick / "bounds.mp4", good]
    began = time.monotonic()
    answers = measure(
        [Ask(p, f"references[{i}].source", "clip") for i, p in enumerate(paths)], Limits(wall_seconds=5.0)
    )
    assert time.monotonic() - began < 50
    assert [isinstance(answer, Measured) for answer in answers] == [True, False, True, False, False, True]
    assert str(answers[1]) == "references[1].source: it crashed the program that reads it"
    assert str(answers[3]) == "references[3].source: it takes too long to read"
    assert str(answers[4]) == f"references[4].source: {Limits().memory_bytes}"
    assert still_running((sick / "group").read_text()) == []


def test_a_child_that_cannot_start_is_no_fault_of_a_medium(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InternalError):
        measure([Ask(folder / "slow.mp4", "source", "clip")])


def test_no_media_need_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert measure([]) == verify([]) == []

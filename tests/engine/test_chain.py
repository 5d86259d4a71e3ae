"""Chains of clips through the real composer, encoder and files, from an engine that paints what it is asked for.

Every frame of the painted clips is a grey that tells its place in the whole, and the sound is one tone that goes on, so
a frame or a sample that is missing, there twice or out of place shows.
"""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from h3runtime.core import (
    Clip,
    ClipInput,
    EngineFacts,
    GenerateSpec,
    GuideInput,
    MediaFile,
    OnProgress,
    Progress,
    SamplerSettings,
    ShouldStop,
    SoundInput,
    Task,
)
from h3runtime.engine.chain import Chain, ChainMaker, Link
from h3runtime.errors import BadMedia, JobCancelled, NumericalError, Offence
from h3runtime.media.ffmpeg import find_ffmpeg
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from h3runtime.media.joining import sample_at
from h3runtime.media.lossless import LosslessWriter
from h3runtime.media.probe import count_packets, probe_clip, read_frames, read_sound
from h3runtime.packing.cuts import exact, shares

WIDTH = HEIGHT = 64


def grey(frame: int) -> int:
    """Neighbours differ by 37 levels or more, far above what the encoder does to a flat picture."""
    return 20 + frame * 37 % 199


def tone(start: int, samples: int) -> np.ndarray:
    t = (start + np.arange(samples)) / 32000
    return np.stack([0.2 * np.sin(2 * np.pi * 440 * t)] * 2).astype(np.float32)


class Painter:
    """Paints clips whose first frame is `at` of the whole, and keeps what its guides were. fail: by `job_id`."""

    def __init__(self, at: dict[str, int], fail: dict[str, Exception] | None = None) -> None:
        self.at, self.fail = at, fail or {}
        self.guides: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.asked: list[str] = []

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip:
        self.asked.append(spec.job_id)
        if should_stop():
            raise JobCancelled("the job was cancelled")
        if spec.job_id in self.fail:
            raise self.fail[spec.job_id]
        on_progress(Progress("sampling", 1, 2, 0.5))
        for guide in spec.guides:
            assert guide.clip is not None and guide.sound is not None
            frames = np.stack(list(clip_frames(guide.clip, spec.width, spec.height, guide.fit)))
            self.guides[spec.job_id] = frames, read_sound_in(guide.sound)
        self._paint(spec)
        spec.output.write_bytes(b"thrown away")
        empty: dict[str, int] = {}
        return Clip(
            spec.output, "0" * 64, 1, spec.width, spec.height, spec.frames, 1, 0, 1, "sdpa", "dequant", {}, empty, {}
        )

    def _paint(self, spec: GenerateSpec) -> None:
        assert spec.tail is not None and spec.tail.frames == spec.frames
        first = self.at[spec.job_id]
        # As the audio decoder: 40 latents a second of 800 samples.
        waveform = tone(sample_at(first), round(spec.frames / 24 * 40) * 800)
        writer = LosslessWriter(spec.tail.path, spec.width, spec.height, waveform)
        for frame in range(first, first + spec.frames):
            writer.put(np.full((1, spec.height, spec.width, 3), grey(frame), np.uint8))
        writer.finish()

    def load(self, on_progress: OnProgress) -> None:
        raise NotImplementedError

    def facts(self) -> EngineFacts:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def chain_of(folder: Path, seconds: list[Fraction], wanted: list[int]) -> tuple[Chain, dict[str, int]]:
    """A chain below `folder`, and the frame of the whole at which each of its clips begins."""
    scratch = folder / "scratch"
    scratch.mkdir()
    links, at = [], {}
    for index, share in enumerate(shares(seconds, wanted)):
        guide = scratch / f"guide-{index}.mkv" if share.overlap else None
        spec = GenerateSpec(
            job_id=str(index),
            task=Task.I2VA if guide else Task.T2VA,
            prompt="x",
            width=WIDTH,
            height=HEIGHT,
            frames=share.frames,
            sampling=SamplerSettings(steps=1),
            output=scratch / f"clip-{index}.mp4",
            scratch=scratch,
        )
        if guide is not None:
            file = MediaFile(guide, "continue_from")
            own = GuideInput("continue_from", 0, clip=ClipInput(file, 0, share.overlap), sound=SoundInput(file))
            spec = replace(spec, guides=(own,))
        links.append(Link(spec, share, guide))
        at[str(index)] = share.start - share.overlap
    return Chain(tuple(links), folder / "chain.mp4", scratch), at


def make(chain: Chain, painter: Painter, reports: list[Progress] | None = None, **options: object):
    seen = [] if reports is None else reports
    return ChainMaker(painter, find_ffmpeg(), seen.append, options.pop("stop", lambda: False), **options).make(chain)


def assert_goes_on(path: Path, frames: int, most: float = 1.03) -> None:
    """Every frame of the whole once and in its place, under one tone. most: times its level, at cuts."""
    pictures = read_frames(path).astype(int)
    wanted = np.array([grey(frame) for frame in range(frames)])
    assert len(pictures) == frames
    assert np.abs(pictures.mean(axis=(1, 2, 3)) - wanted).max() < 6
    sound, rate = read_sound(path)
    assert rate == 32000 and abs(sound.shape[1] - sample_at(frames)) < 2048
    # Windows of 50 ms, of which each holds 22 periods.
    levels = np.sqrt((sound[0][: len(sound[0]) // 1600 * 1600].reshape(-1, 1600) ** 2).mean(axis=1))[1:-2]
    levels /= 0.2 / np.sqrt(2)
    assert levels.min() > 0.97 and levels.max() < most


def test_thirty_clips_of_five_point_two_seconds_end_at_156(tmp_path: Path) -> None:
    """Parts of one length are one file here: what lies in them is the other tests' matter."""

    class Copying(Painter):
        painted: dict[int, Path] = {}  # noqa: RUF012  # one test

        def _paint(self, spec: GenerateSpec) -> None:
            assert spec.tail is not None
            if spec.frames not in self.painted:
                super()._paint(spec)
                self.painted[spec.frames] = spec.tail.path
            elif spec.tail.path != self.painted[spec.frames]:
                spec.tail.path.hardlink_to(self.painted[spec.frames])

    chain, at = chain_of(tmp_path, [exact(5.2)] * 30, [22, 0] * 15)
    reports: list[Progress] = []
    result = make(chain, Copying(at), reports)
    assert count_packets(chain.output)[0] == result.written.frames == 3744 == 156 * 24
    assert result.written.samples == 156 * 32000 and len(result.clips) == 30
    fractions = [progress.fraction for progress in reports]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert [p for p in chain.scratch.iterdir() if p.suffix == ".mp4"] == []


def test_each_guide_is_what_was_seen_last(tmp_path: Path) -> None:
    # Clips shorter than the overlap: the third one's guide reaches back into the first.
    chain, at = chain_of(tmp_path, [exact(1), exact(0.3), exact(0.5), exact(1)], [22, 22, 22, 39])
    painter = Painter(at)
    make(chain, painter)
    assert_goes_on(chain.output, 67)
    for index, link in enumerate(chain.links[1:], 1):
        frames, sound = painter.guides[str(index)]
        first = link.share.start - link.share.overlap
        assert len(frames) == link.share.overlap == (39 if index == 3 else 22)
        assert [int(f[0, 0, 0]) for f in frames] == [grey(first + k) for k in range(len(frames))]
        assert abs(sound.shape[1] - (sample_at(link.share.start) - sample_at(first))) <= 400
        assert np.abs(sound - tone(sample_at(first), sound.shape[1])).max() < 1e-5


def test_a_hard_cut_has_no_guide_and_takes_no_time(tmp_path: Path) -> None:
    chain, at = chain_of(tmp_path, [exact(1), exact(1)], [0, 0])
    painter = Painter(at)
    result = make(chain, painter)
    assert painter.guides == {} and result.written.frames == 48 and result.written.samples == 64000
    # Of two equal sounds, faded as if they were strangers.
    assert_goes_on(chain.output, 48, most=1.2)


def test_the_loudness_rule_sees_the_whole(tmp_path: Path) -> None:
    """A loud clip makes the quiet one quieter too: level differences between the clips stay."""

    class Louder(Painter):
        def _paint(self, spec: GenerateSpec) -> None:
            assert spec.tail is not None
            level = 4.0 if spec.job_id == "1" else 0.4
            writer = LosslessWriter(spec.tail.path, WIDTH, HEIGHT, level * tone(0, 80_000))
            writer.put(np.zeros((spec.frames, HEIGHT, WIDTH, 3), np.uint8))
            writer.finish()

    chain, at = chain_of(tmp_path, [exact(1), exact(1)], [0, 0])
    make(chain, Louder(at))
    sound = read_sound(chain.output)[0][0]
    quiet, loud = (np.sqrt((part**2).mean()) for part in (sound[6400:25600], sound[38400:57600]))
    assert loud / quiet == pytest.approx(10, rel=0.05)
    assert np.std(sound) == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(
    "fault", [NumericalError("nothing but NaN", stage="sampling"), BadMedia("x: is gone", [Offence("x", "is gone")])]
)
def test_a_failure_says_at_which_clip(tmp_path: Path, fault: NumericalError | BadMedia) -> None:
    chain, at = chain_of(tmp_path, [exact(0.2)] * 3, [5] * 3)
    painter = Painter(at, {"1": fault})
    with pytest.raises(type(fault), match=r"^\[1\]: ") as caught:
        make(chain, painter)
    assert painter.asked == ["0", "1"] and not chain.output.exists()
    assert all(offence.field == "[1].x" for offence in caught.value.offences)


def test_a_stop_is_heard_between_and_after_the_clips(tmp_path: Path) -> None:
    chain, at = chain_of(tmp_path, [exact(0.2)] * 2, [5] * 2)
    painter = Painter(at)
    with pytest.raises(JobCancelled):
        make(chain, painter, stop=lambda: len(painter.asked) == 2)
    assert painter.asked == ["0", "1"] and not chain.output.exists()


def test_an_existing_output_is_kept(tmp_path: Path) -> None:
    chain, at = chain_of(tmp_path, [exact(0.2)], [0])
    chain.output.write_bytes(b"mine")
    make(replace(chain, overwrite=True), Painter(at))
    assert probe_clip(chain.output).frames == 5

"""A stop is seen in every stage, within one step of it, and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from h3runtime.core import GuideInput, Progress, TailRequest, Task
from h3runtime.engine import tail as tails
from h3runtime.engine.conditions import media_encoder
from h3runtime.engine.conditions.reading import read, read_each
from h3runtime.engine.stopping import layers_of
from h3runtime.engine.tail import Tail
from h3runtime.errors import BadMedia, JobCancelled
from h3runtime.media.mux import ClipShape
from h3runtime.media.process import Child

SOON = 15.0
"""Seconds in which a stop has to be seen that nothing but a look ten times a second can see; without one it would be
twice as long at least."""


class Stop:
    """Says stop from the `looks`-th look on at a stage."""

    def __init__(self, stage: str, looks: int) -> None:
        self.stage, self.left, self.at = stage, looks, ""

    def on_progress(self, progress: Progress) -> None:
        self.at = progress.stage

    def __call__(self) -> bool:
        self.left -= self.at == self.stage
        return self.left < 0


@pytest.mark.parametrize("stage", ["conditioning", "sampling", "audio_decode", "video_decode", "mux"])
def test_every_stage_looks_more_than_once(engine, make_spec, tmp_path, monkeypatch, stage) -> None:
    """In one piece of work: 1 forward, 1 sound, 1 chunk of pictures behind the one that is made beside the sound."""
    for folder in ("outputs", "scratch"):
        (tmp_path / folder).mkdir()
    frames = 39 if stage == "video_decode" else 5
    spec = make_spec(width=64, height=64, frames=frames, steps=1, output=tmp_path / "outputs" / "cat.mp4")
    stop = Stop(stage, 1 if stage == "mux" else 3)
    # However soon it has: we may be late to look.
    ended, late = Child._has_ended, iter([True] * 5)
    monkeypatch.setattr(Child, "_has_ended", lambda self: ended(self) and not (stop.at == "mux" and next(late, False)))
    engine.conditioner.cache.clear()
    with pytest.raises(JobCancelled) as caught:
        engine.generate(replace(spec, scratch=tmp_path / "scratch"), stop.on_progress, stop)
    assert caught.value.stage == stage
    assert not list((tmp_path / "outputs").iterdir()) and not list((tmp_path / "scratch").iterdir())


def test_looks_end_with_the_request(engine, make_spec) -> None:
    engine.generate(make_spec(width=64, height=64, frames=5, steps=1), lambda _: None, lambda: False)
    assert not any(layer._forward_pre_hooks for layer in layers_of(engine.models, Task.T2VA))


@pytest.mark.parametrize(
    ("name", "what"), [("read_picture", "picture"), ("clip_frames", "clip"), ("read_sound_in", "sound")]
)
def test_a_medium_that_takes_its_time_doesn_t_hold_up_a_stop(engine, make_spec, media, monkeypatch, name, what) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(*_, **__):
        reading.set()
        go_on.wait(120)
        return iter(())

    monkeypatch.setattr(media_encoder, name, slow)
    engine.media_cache.clear()
    given = {"picture": media.picture, "sound": media.voice, "clip": lambda field: media.clip(field, 5)}[what](
        "keyframes[0]"
    )
    spec = replace(make_spec(), guides=(GuideInput("keyframes[0]", 0, **{what: given}),))
    began = time.monotonic()
    with pytest.raises(JobCancelled):
        engine.generate(spec, lambda _: None, reading.is_set)
    go_on.set()
    assert time.monotonic() - began < 4 * SOON


def test_a_tail_that_is_slow_to_write_doesn_t_either(tmp_path, monkeypatch) -> None:
    class Slow:
        def __init__(self, *_) -> None:
            self.written = 0

        def put(self, frames) -> None:
            self.written += len(frames)
            time.sleep(0.5)

        def finish(self) -> None: ...

        def abandon(self) -> None: ...

    monkeypatch.setattr(tails, "LosslessWriter", Slow)

    def poll() -> None:
        raise JobCancelled("stop")

    sound = np.zeros((2, 100_000), np.float32)
    began = time.monotonic()
    # 56 frames would take 28 s.
    asked, shape = TailRequest(tmp_path / "tail.mkv", 56), ClipShape(64, 64, 56)
    with pytest.raises(JobCancelled), Tail(asked, tmp_path, shape, sound, poll) as tail:
        tail.put(np.zeros((56, 64, 64, 3), np.uint8))
    assert time.monotonic() - began < SOON and not list(tmp_path.iterdir())


def test_what_is_read_aside_comes_in_order_with_its_errors() -> None:
    assert list(read_each(lambda: range(5), lambda: None)) == [0, 1, 2, 3, 4]
    assert read(lambda: 7, lambda: None) == 7

    def broken():
        yield 1
        raise BadMedia("damaged")

    found = read_each(broken, lambda: None)
    assert next(found) == 1
    with pytest.raises(BadMedia, match="damaged"):
        next(found)


def test_a_reader_that_nobody_waits_for_ends() -> None:
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    found = read_each(endless, lambda: None)
    next(found)
    found.close()
    assert closed.wait(60)

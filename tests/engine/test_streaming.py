"""A long reference is never held: memory doesn't follow its length, progress does, and it can be stopped."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from h3runtime.core import CHUNK_FRAMES, FPS, ClipInput, Progress, ReferenceInput, Task
from h3runtime.engine.conditions.gathering import conditions_of, steps_of
from h3runtime.engine.conditions.media_cache import MediaCache
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.run import FIRST_GUESS, Run
from h3runtime.errors import JobCancelled
from h3runtime.observe.memory import resident_bytes
from tests.clips import moving, write_clip
from tests.engine.conditioned import clip_reference, image_reference, voice_reference

SIDE = 256
FRAME_BYTES = 3 * SIDE * SIDE
SHORT, LONG = 39, 345
"""What is used of 2 s and of 15 s."""


@pytest.fixture
def quick(engine, monkeypatch) -> None:
    """No network: this is about what surrounds it."""

    def moments(pixels: torch.Tensor, **_: object) -> torch.Tensor:
        frames, height, width, _ = pixels.shape
        return torch.zeros(1, 48, -(-(frames + 3) // 4), height // 16, width // 16)

    monkeypatch.setattr(engine.models.vaes.video, "encode_moments", moments)


@pytest.fixture
def long_clip(media) -> ClipInput:
    """15 s: pictures of 1 s over and over, so that the test has little to encode."""
    pictures = np.tile(moving(FPS, SIDE, SIDE), (15, 1, 1, 1))
    path = write_clip(media.folder / "long.mkv", pictures, codec="mjpeg", pixel_format="yuvj420p")
    return ClipInput(replace(media.clip("c", 5).file, path=path, field="references[0].source"), 0, LONG)


def gather(engine, spec, on_progress: Callable[[Progress], None]) -> None:
    run = Run(on_progress, lambda: False, FIRST_GUESS)
    with run.stage("conditioning", steps_of(spec)):
        conditions_of(spec, MediaEncoder(engine.models.vaes, engine.device, MediaCache(0), run))


@pytest.mark.usefixtures("quick")
def test_memory_does_not_follow_the_length_of_a_reference(engine, make_spec, long_clip) -> None:
    def growth(frames: int) -> int:
        clip = replace(long_clip, frames=frames)
        reference = ReferenceInput("references[0]", "video", SIDE, SIDE, clip=clip)
        spec = make_spec(task=Task.REF2VA, references=(reference,))
        gc.collect()
        before, most = resident_bytes(), [0]
        # Without the collector's help: it comes when it likes.
        gc.disable()
        try:
            gather(engine, spec, lambda _: most.append(resident_bytes()))
        finally:
            gc.enable()
        return max(most) - before

    growth(SHORT)
    samples = (LONG - SHORT) // 12 * FRAME_BYTES
    # The pieces that are encoded, read meanwhile, and on their way from one to the other. What the short clip took is
    # in the process' hands already, so that it isn't in both figures.
    ahead = 3 * CHUNK_FRAMES * FRAME_BYTES
    # What is resident is counted in pages: FFmpeg's threads hold frames of their own, and each thread a heap.
    decoders = 16 * FRAME_BYTES
    held = (LONG - SHORT) * FRAME_BYTES
    assert growth(LONG) - growth(SHORT) < samples + ahead + decoders < held / 3


@pytest.mark.usefixtures("quick")
def test_progress_rises_piece_by_piece(engine, make_spec, media, long_clip) -> None:
    references = (
        ReferenceInput("references[0]", "video", SIDE, SIDE, clip=long_clip),
        image_reference(media, 1),
        voice_reference(media, 2, 0.2),
    )
    spec = make_spec(task=Task.REF2VA, references=references)
    seen: list[Progress] = []
    gather(engine, spec, seen.append)
    pieces = -(-LONG // 17) + 1 + 1
    assert steps_of(spec) == pieces + 1
    assert [p.step for p in seen[:-1]] == list(range(pieces + 1))
    assert {p.steps for p in seen} == {pieces + 1}
    fractions = [p.fraction for p in seen]
    assert fractions == sorted(fractions) and fractions[0] < fractions[-1]


def test_what_is_remembered_counts_as_done(engine, make_spec, media) -> None:
    """Twice the same clip: the second time its pieces pass at once."""
    spec = make_spec(task=Task.REF2VA, references=(clip_reference(media, 0), clip_reference(media, 1)))
    steps: list[int] = []
    run = Run(lambda p: steps.append(p.step), lambda: False, FIRST_GUESS)
    with run.stage("conditioning", steps_of(spec)):
        conditions_of(spec, MediaEncoder(engine.models.vaes, engine.device, MediaCache(1 << 24), run))
    assert steps[:-1] == [0, 1, 2, 3, 5, 6]


def test_a_stop_is_heeded_between_pieces(engine, make_spec, media) -> None:
    spec = make_spec(task=Task.REF2VA, width=64, height=64, frames=5, references=(clip_reference(media, 0, 39),))
    reached: list[int] = []
    with pytest.raises(JobCancelled) as caught:
        engine.generate(spec, lambda p: reached.append(p.step), lambda: 1 in reached)
    assert (caught.value.stage, max(reached)) == ("conditioning", 1)
    assert not list(spec.output.parent.glob("*.mp4"))

"""A chain of three clips of a tiny model, from a list of requests to one file."""

import json
from pathlib import Path

import numpy as np
import pytest

from h3runtime.cli.generation.chain_plan import Planned, plan_chain
from h3runtime.cli.generation.chain_result import chain_facts
from h3runtime.core import ClipInput, MediaFile, SoundInput
from h3runtime.engine.chain import Chain, ChainMaker, ChainResult, Link
from h3runtime.engine.resident import ResidentEngine
from h3runtime.media.ffmpeg import find_ffmpeg
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from h3runtime.media.probe import probe_clip

SIZE = 64
CANVAS = {"width": SIZE, "height": SIZE, "steps": 1}
LIST = [
    {"prompt": "a red ball", "seconds": 0.3, "seed": 1, **CANVAS},
    {"prompt": "it bounces", "seconds": 0.6, "seed": 2, "steps": 1, "continue_from": {"frames": 5}},
    {"prompt": "elsewhere", "seconds": 0.2, "seed": 3, "steps": 1, "continue_from": False},
]


@pytest.fixture(scope="module")
def made(
    engine: ResidentEngine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[Planned, ...], ChainResult, Path]:
    folder = tmp_path_factory.mktemp("chain")
    planned = plan_chain(LIST, folder, folder, engine.settings)
    links = tuple(Link(plan.spec, plan.share, plan.guide) for plan in planned)
    maker = ChainMaker(engine, find_ffmpeg(), lambda _: None, lambda: False)
    return planned, maker.make(Chain(links, folder / "chain.mp4", folder)), folder


def frames_of(path: Path, first: int, count: int) -> np.ndarray:
    clip = ClipInput(MediaFile(path, "clip"), first, count)
    return np.stack(list(clip_frames(clip, SIZE, SIZE, "stretch")))


def test_the_whole_is_as_long_as_asked(engine: ResidentEngine, made: tuple) -> None:
    planned, result, folder = made
    facts = chain_facts(planned, result.clips, result.written, engine.facts(), 1.0)
    json.dumps(facts)
    # 0.3 s are 7.2 frames, 0.9 s 21.6, 1.1 s 26.4.
    assert facts["cuts"] == [7, 22, 26] and facts["frames"] == 26
    found = probe_clip(folder / "chain.mp4")
    assert (found.frames, found.width, found.height) == (26, SIZE, SIZE)
    assert [clip["seed"] for clip in facts["clips"]] == ["1", "2", "3"]
    assert [clip["task"] for clip in facts["clips"]] == ["t2va", "i2va", "t2va"]
    assert [clip["frames"] for clip in facts["clips"]] == [22, 22, 5]
    assert facts["samples"] == 34667
    assert any("made up" in warning for warning in facts["warnings"])


def test_the_second_clip_is_given_the_end_of_the_first(made: tuple) -> None:
    planned, _, folder = made
    guide = planned[1].guide
    # The last five frames before the cut, not of the clip, which has 22.
    assert np.array_equal(frames_of(guide, 0, 5), frames_of(folder / "part-0000.mkv", 2, 5))
    sound = read_sound_in(SoundInput(MediaFile(guide, "clip")))
    first = read_sound_in(SoundInput(MediaFile(folder / "part-0000.mkv", "clip")))
    # Frames 2..7 begin at sample 2667 and end at 9333.
    assert np.array_equal(sound, first[:, 2667 : 2667 + sound.shape[1]]) and abs(sound.shape[1] - 6666) <= 1
    (given,) = planned[1].spec.guides
    assert given.clip == ClipInput(MediaFile(guide, "continue_from"), 0, 5) and not given.shown


def test_nothing_of_the_clips_themselves_is_left(made: tuple) -> None:
    assert [path.name for path in made[2].glob("clip-*")] == []

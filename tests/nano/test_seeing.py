"""What is seen of single objects: colours, shapes, motions and impacts, small, blurred and off-colour too."""

from __future__ import annotations

import numpy as np
import pytest

from h3runtime.core import FPS
from h3runtime.nano.moving import impacts_of, motion_of
from h3runtime.nano.pictures import portrait
from h3runtime.nano.seeing import look, named, objects_match
from h3runtime.nano.world import COLOURS, FLOORS, SHAPES, Scene, track
from tests.nano.clips import clip, lone
from tests.nano.damage import damaged_frames


@pytest.mark.parametrize("colour", COLOURS)
def test_a_colour_is_known_when_each_channel_is_off_by_15_percent(colour: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        off = np.array(COLOURS[colour]) * (1 + rng.choice([-0.15, 0, 0.15]) * np.array([1, 1, 1]))
        assert named(off.astype(np.float32), COLOURS) == colour
        spread = np.array(COLOURS[colour]) * rng.uniform(0.9, 1.1, 3)
        assert named(spread.astype(np.float32), COLOURS) == colour


@pytest.mark.parametrize("floor", FLOORS)
def test_every_floor_is_known_under_a_large_object(floor: str) -> None:
    _, frames, _ = clip(Scene((lone("white", "box", "down", radius=0.19),), floor), 64, 64)
    assert look(frames).floor == floor


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_of_nine_pixels_is_known_though_blurred(shape: str) -> None:
    _, frames, _ = clip(Scene((lone("yellow", shape, "still", radius=9 / 128),), "blue"), frames=5)
    blurred = damaged_frames(frames, np.random.default_rng(0), blur=1.5)
    (sight,) = look(blurred).objects
    assert (sight.shape, sight.colour, sight.motion) == (shape, "yellow", "still")
    assert objects_match(blurred, "yellow", shape)
    assert not objects_match(blurred, "red", shape)


def test_the_path_is_the_scene_s() -> None:
    actor = lone("green", "triangle", "bounce", first=4.3, period=11)
    _, frames, _ = clip(Scene((actor,), "grey"), 128, 192, 39)
    (sight,) = look(frames).objects
    truth = track(actor, 39, 192 / 128)
    assert np.abs(sight.x - truth.x).max() < 0.003
    assert np.abs(sight.y - truth.y).max() < 0.003
    assert np.allclose(sight.impacts, truth.impacts[: len(sight.impacts)], atol=0.3 / FPS)
    assert len(sight.impacts) == sum(t < 37 / FPS for t in truth.impacts)


def test_two_objects_are_told_apart_and_listed_from_left_to_right() -> None:
    actors = lone("blue", "ring", "appear", x=0.75), lone("orange", "triangle", "shrink", x=0.25)
    _, frames, _ = clip(Scene(actors, "red"))
    found = [(s.colour, s.shape, s.motion) for s in look(frames).objects]
    assert found == [("orange", "triangle", "shrink"), ("blue", "ring", "appear")]


def test_what_flashes_up_for_a_moment_is_no_object() -> None:
    _, frames, _ = clip(Scene((lone("white", "ball", "still", x=0.25),), "green"))
    frames = frames.copy()
    frames[8:11, 40:60, 90:110] = COLOURS["red"]
    assert look(frames).count == 1


def test_a_reference_picture_can_be_looked_at_as_a_clip_of_one_frame() -> None:
    frame = portrait("purple", "ring", 128, 128).numpy()
    # A portrait stands on grey, without a floor.
    assert objects_match(frame[None], "purple", "ring")


def test_what_leaves_early_vanishes() -> None:
    x = np.full(20, 0.5)
    gone = np.where(np.arange(20) > 12, np.nan, x)
    assert motion_of(gone, gone, gone) == "vanish"
    assert motion_of(x, x, x) == "still"


def test_impacts_lie_between_frames() -> None:
    frame = np.arange(24)
    phase = ((frame - 5.4) / 12) % 1
    y = 0.8 - 4 * 0.5 * phase * (1 - phase)
    assert np.allclose(impacts_of(y), np.array([5.4, 17.4]) / FPS, atol=0.2 / FPS)
    y[10] = np.nan
    assert len(impacts_of(y)) == 2

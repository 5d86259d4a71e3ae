"""The judge agrees with the truth on rendered clips, whole and damaged, and says no to wrong ones.

As a script it takes more clips than the suite has time for: `python -m tests.nano.test_judge --count 500`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import pytest

from h3runtime.nano.hearing import listen
from h3runtime.nano.judge import ITEMS, Verdict, compare, judge, score
from h3runtime.nano.seeing import look
from h3runtime.nano.world import MOTIONS, SHAPES, Scene, track
from tests.nano.clips import Rendered, clip, drawn, lone
from tests.nano.damage import damaged_frames, damaged_sound

SIZES = ((128, 128, 22), (192, 128, 22), (128, 192, 22), (320, 192, 39), (64, 64, 22))


def verdicts(count: int, size: tuple[int, int, int], *, damaged: bool = False, exact: bool = True) -> list[Verdict]:
    """What the judge says of so many clips by lot."""
    rng = np.random.default_rng(1)
    found = []
    for scene, frames, samples in drawn(count, *size):
        if damaged:
            frames, samples = damaged_frames(frames, rng), damaged_sound(samples, rng)
        found.append(judge(scene, frames, samples, exact=exact))
    return found


def wrong(made: Rendered, *told: Scene) -> list[set[str]]:
    """For each scene that the judge is told, the items that the clip has wrong; it looks and listens once."""
    _, frames, samples = made
    count, height, width, _ = frames.shape
    seen, heard = look(frames), listen(samples, count)
    found = []
    for scene in told:
        verdict = compare(scene, [track(a, count, height / min(height, width)) for a in scene.actors], seen, heard)
        found.append({item for item, value in verdict.items() if value is False})
    return found


def test_it_agrees_with_the_truth_in_whatever_a_scene_has() -> None:
    # On 500 clips each (the script below) every item was right at every one of SIZES.
    found = score(verdicts(40, (128, 128, 22)))
    assert all(share == 1 for share, _ in found.values()), found
    assert all(number > 5 for _, number in found.values()), found


def test_it_asks_no_more_of_a_clip_than_the_caption_does() -> None:
    found = score(verdicts(10, (128, 128, 22), exact=False))
    assert all(share == 1 for share, number in found.values() if number), found


@pytest.mark.parametrize(("size", "count"), [((192, 128, 22), 6), ((320, 192, 39), 2), ((64, 64, 22), 20)])
def test_the_size_of_a_clip_does_not_matter(size: tuple[int, int, int], count: int) -> None:
    found = score(verdicts(count, size))
    assert all(share == 1 for share, number in found.values() if number), found


def test_damage_does_not_lead_it_astray() -> None:
    found = score(verdicts(20, (128, 128, 22), damaged=True))
    assert all(share > 0.97 for share, _ in found.values()), found


@pytest.mark.parametrize("motion", MOTIONS)
def test_another_motion_is_noticed(motion: str) -> None:
    made = clip(Scene((lone(motion=motion),), "grey"), 64, 64)
    others = [replace(made[0], actors=(lone(motion=other),)) for other in MOTIONS if other != motion]
    right, *rest = wrong(made, made[0], *others)
    assert not right
    assert all("direction" in items for items in rest), rest


@pytest.mark.parametrize("shape", SHAPES)
def test_another_shape_is_noticed_in_the_picture_and_in_the_sound(shape: str) -> None:
    made = clip(Scene((lone("white", shape, "still"),), "blue"))
    others = [replace(made[0], actors=(lone("white", other, "still"),)) for other in SHAPES if other != shape]
    assert wrong(made, made[0], *others) == [set(), *[{"shape", "pitch"}] * 3]


def test_swapped_colours_are_noticed() -> None:
    left, right = lone("red", "ball", "still", x=0.25), lone("blue", "box", "still", x=0.75)
    made = clip(Scene((left, right), "grey"))
    swapped = Scene((replace(left, colour="blue"), replace(right, colour="red")), "grey")
    assert wrong(made, made[0], swapped) == [set(), {"colour"}]


def test_a_mirrored_clip_moves_the_other_way_and_sounds_elsewhere() -> None:
    scene, frames, samples = clip(Scene((lone(motion="right"),), "grey"))
    verdict = judge(scene, frames[:, :, ::-1], samples, exact=True)
    assert {item for item, value in verdict.items() if value is False} == {"direction", "position"}
    assert judge(scene, frames[:, :, ::-1], samples)["pan"] is False


def test_swapped_channels_are_noticed() -> None:
    scene, frames, samples = clip(Scene((lone(x=0.25),), "grey", place="left"))
    assert judge(scene, frames, samples)["pan"] is True
    verdict = judge(scene, frames, samples[::-1])
    assert [item for item, value in verdict.items() if value is False] == ["pan"]


@pytest.mark.parametrize("seconds", [-0.125, 0.125])
def test_sound_that_comes_too_early_or_too_late_is_noticed(seconds: float) -> None:
    scene, frames, samples = clip(Scene((lone(motion="bounce"),), "grey"))
    shifted = np.roll(samples, round(seconds * 32_000), 1)
    verdict = judge(scene, frames, shifted, exact=True)
    assert verdict["sync"] is verdict["rhythm"] is False
    assert verdict["pitch"] is verdict["presence"] is True


def test_silence_and_sound_are_told_apart() -> None:
    scene, frames, samples = clip(Scene((lone(motion="still"),), "grey"))
    muted = judge(scene, frames, np.zeros_like(samples))
    assert not any(muted[item] for item in ("presence", "pitch", "rhythm", "pan", "timbre"))
    silent = replace(scene, sound=False)
    assert judge(silent, frames, samples)["presence"] is False
    verdict = judge(silent, frames, np.zeros_like(samples))
    assert verdict["presence"] is True
    assert all(verdict[item] is None for item in ("pitch", "rhythm", "pan", "sync", "timbre"))


def test_one_object_instead_of_two_and_two_instead_of_one_are_noticed() -> None:
    left, right = lone("red", "ball", "still", x=0.25), lone("blue", "box", "up", x=0.75)
    both, one = clip(Scene((left, right), "grey")), clip(Scene((left,), "grey"))
    assert {"count", "pitch"} <= wrong(both, one[0])[0]
    assert {"count", "colour", "shape", "direction", "pitch"} <= wrong(one, both[0])[0]


def test_one_mistake_is_one_item() -> None:
    scene = Scene((lone(),), "grey", timbre="bright", place="middle")
    others = replace(scene, floor="blue"), replace(scene, place="left"), replace(scene, timbre="pure")
    assert wrong(clip(scene), *others) == [{"floor"}, {"position"}, {"timbre"}]


def test_noise_is_nothing_of_all_this() -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (22, 128, 128, 3), np.uint8)
    verdict = judge(Scene((lone(),), "red"), frames, rng.standard_normal((2, 29_600)).astype(np.float32))
    assert not any(verdict[item] for item in ("shape", "direction", "pitch", "rhythm", "pan", "sync", "timbre"))


def test_an_empty_stage_has_no_object() -> None:
    scene, frames, samples = clip(Scene((lone(motion="appear", first=2.0),), "green"))
    verdict = judge(scene, frames, samples)
    assert not any(verdict[item] for item in ("colour", "shape", "direction", "count", "pan", "sync"))
    assert verdict["floor"] is True


def test_shares_count_only_what_was_judged() -> None:
    found = score([{"colour": True, "sync": None}, {"colour": False, "sync": True}])
    assert found["colour"] == (0.5, 2)
    assert found["sync"] == (1.0, 1)
    assert found["pan"] == (0.0, 0)
    assert tuple(found) == ITEMS


def main() -> None:
    """Print the shares of every size, whole and damaged."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=500)
    count = parser.parse_args().count
    for size in SIZES:
        for damaged in (False, True):
            began = time.process_time()
            found = score(verdicts(count, size, damaged=damaged))
            shares = "  ".join(f"{item} {100 * share:.1f} ({number})" for item, (share, number) in found.items())
            print(
                f"{size} {'damaged' if damaged else 'whole'}: {shares}  [{time.process_time() - began:.0f} s]",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""References: the official limits, told before anything is decoded, and what of each is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from h3runtime.core import ClipInput, SoundInput, Task
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size
from tests.api.desk import Desk, clip, medium, sound
from tests.api.server import picture


def image(width: int = 64, height: int = 64, **more: Any) -> dict[str, Any]:
    return {"type": "image", "source": medium(picture(width, height)), **more}


def video(seconds: float = 3.0, heard: float | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "video", "source": medium(clip(seconds, sound=heard)), **more}


def voice(seconds: float = 3.0, **more: Any) -> dict[str, Any]:
    return {"type": "audio", "source": medium(sound(seconds)), **more}


def test_references_keep_the_callers_order(desk: Desk) -> None:
    spec = desk.spec(references=[voice(), image(), video(heard=3.0), image(96, 64)], frames=22)
    assert spec.task is Task.REF2VA
    assert [reference.kind for reference in spec.references] == ["audio", "image", "video", "image"]
    assert [reference.field for reference in spec.references] == [f"references[{i}]" for i in range(4)]
    files = [reference.picture or reference.clip or reference.sound for reference in spec.references]
    assert all(file is not None for file in files)
    assert desk.examiner.verified == ["references[2].source", "references[0].source"]


@pytest.mark.parametrize(
    ("references", "offenders"),
    [
        ([image()] * 10, {"references[9]"}),
        ([video(2)] * 4, {"references[3]"}),
        ([image(), *[voice(2)] * 4], {"references[4]"}),
        ([video(2, audio=medium(sound(2))), voice(2), voice(2), voice(2)], {"references[3]"}),
        ([*[image()] * 7, *[video(2)] * 3, *[voice(2)] * 3], {"references[12]"}),
        ([voice()], {"references"}),
        ([image(), video(1.9)], {"references[1].source"}),
        ([video(4 / 24)], {"references[0].source"}),
        ([video(15.1)], {"references[0].source"}),
        ([image(), voice(1.5)], {"references[1].source"}),
        ([image(), voice(16.0)], {"references[1].source"}),
        ([image(), voice(16.0), voice(2.0)], {"references[1].source", "references"}),
        ([video(5.5), video(5), video(5)], {"references"}),
        ([image(), voice(8), voice(8)], {"references"}),
        ([video(5, audio=medium(sound(8))), voice(8)], {"references"}),
        ([video(5, audio=medium(sound(1)))], {"references[0].audio"}),
        ([video(5, start=3.5)], {"references[0].source"}),
        ([video(5, start=5.0)], {"references[0].start"}),
        ([video(5, start=1e300)], {"references[0].start"}),
        ([image(), voice(5, start=5.0)], {"references[1].start"}),
        ([image(), voice(5, start=4.0)], {"references[1].source"}),
        ([image(), video(1.0), voice(20.0), video(3, start=9.0)], None),
    ],
)
def test_limits_are_told_before_anything_is_decoded(
    desk: Desk, references: list[dict[str, Any]], offenders: set[str] | None
) -> None:
    offenders = offenders or {"references[1].source", "references[2].source", "references[3].start"}
    assert desk.offences(references=references).keys() == offenders
    assert desk.examiner.verified == []


@pytest.mark.parametrize(
    "references",
    [
        [video(2.0)],
        [video(1.96)],
        [video(15.0)],
        [image(), voice(15.04)],
        [video(20, start=5.0)],
        [video(5), video(5), video(5)],
        [video(15, heard=15), image(), voice(15)],
        [*[image()] * 9, *[voice(2)] * 3],
        [video(5, audio=medium(sound(5))), voice(5), voice(5)],
    ],
)
def test_what_is_within_the_limits(desk: Desk, references: list[dict[str, Any]]) -> None:
    assert len(desk.spec(references=references).references) == len(references)


@pytest.mark.parametrize(
    ("frames", "seconds", "start", "used"),
    [(22, 3.0, 0.0, (0, 22)), (124, 3.0, 0.0, (0, 56)), (73, 5.0, 2.52, (60, 56)), (5, 2.0, 0.0, (0, 5))],
)
def test_clips_are_cut_to_the_target_and_the_grid(
    desk: Desk, frames: int, seconds: float, start: float, used: tuple[int, int]
) -> None:
    (found,) = desk.spec(references=[video(seconds, heard=seconds, start=start)], frames=frames).references
    assert isinstance(found.clip, ClipInput) and (found.clip.first, found.clip.frames) == used
    # To the end of the track, from where the pictures begin.
    assert found.sound == SoundInput(found.clip.file, used[0] / 24, None)


def test_soundtracks(desk: Desk) -> None:
    def track(**more: Any) -> tuple[str, float] | None:
        (found,) = desk.spec(references=[video(5, **more)]).references
        return None if found.sound is None else (found.sound.file.field, found.sound.start)

    assert track(heard=5.0) == ("references[0].source", 0.0)
    assert track(heard=5.0, audio="off") is None
    assert track() is None
    assert track(heard=0.5, start=1.0) is None
    assert track(heard=5.0, audio=medium(sound(4)), start=1.0) == ("references[0].audio", 1.0)


def test_a_soundtrack_that_has_ended_is_told(desk: Desk) -> None:
    warnings = desk.admit({"references": [video(5, heard=0.5, start=1.0)]}).warnings
    assert any("references[0].source" in warning for warning in warnings)


@pytest.mark.parametrize("mode", ["match", "max"])
def test_sizes(desk: Desk, mode: str) -> None:
    height = {"match": 300, "max": 2100}[mode]
    pictures = [image(width, height, size=mode) for width in (height, 40)]
    references = [*pictures, {"type": "video", "source": medium(clip(3, 1920, 1080))}, voice()]
    found = desk.spec(references=references, width=128, height=64, steps=1).references
    sizes = [(reference.width, reference.height) for reference in found]
    expected: Callable[..., Size] = geometry.reference_image_size
    canvas = Size(128, 64)
    assert sizes[:2] == [expected(height, height, canvas, mode), expected(40, height, canvas, mode)]
    assert sizes[0][0] < height
    assert sizes[2:] == [(1344, 768), (0, 0)]


def test_the_content_is_named_by_its_hash_alone(desk: Desk) -> None:
    spec = desk.spec(references=[image(), image(96, 64), video(), video()])
    first, second, third, fourth = (reference.picture or reference.clip for reference in spec.references)
    hashes = [getattr(item, "sha256", None) or item.file.sha256 for item in (first, second, third, fourth)]  # type: ignore[union-attr]
    assert len(set(hashes)) == 3 and hashes[2] == hashes[3]
    assert all(len(digest) == 64 for digest in hashes)


def test_figures_of_a_full_decode_are_judged_again(desk: Desk) -> None:
    lying = {"type": "video", "source": medium(clip(3, truth={"seconds": 1.0}))}
    assert desk.offences(references=[lying]).keys() == {"references[0].source"}
    shorter = {"type": "video", "source": medium(clip(3, truth={"seconds": 2.0}))}
    (found,) = desk.spec(references=[shorter], frames=124).references
    assert found.clip is not None and found.clip.frames == 39

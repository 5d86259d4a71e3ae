"""Guides of every kind: where they lie, what of their clips and sounds is used, and what continues another clip."""

from __future__ import annotations

from typing import Any

import pytest

from h3runtime.core import ClipInput, GuideInput, SoundInput, Task
from tests.api.desk import Desk, clip, medium, sound
from tests.api.server import picture


def image(frame: int, **more: Any) -> dict[str, Any]:
    return {"image": medium(picture(64, 64)), "frame": frame, **more}


def video(frame: int, seconds: float = 1.0, heard: float | None = None, **more: Any) -> dict[str, Any]:
    return {"video": medium(clip(seconds, sound=heard)), "frame": frame, **more}


def voice(frame: int, seconds: float = 1.0) -> dict[str, Any]:
    return {"audio": medium(sound(seconds)), "frame": frame}


def places(guides: tuple[GuideInput, ...]) -> list[tuple[str, int]]:
    return [(guide.field, guide.frame) for guide in guides]


def test_guides_come_in_packed_order(desk: Desk) -> None:
    still = medium(picture(64, 64))
    request = {"keyframes": [image(30), image(-2), voice(3)], "last_frame": still, "first_frame": still, "frames": 39}
    spec = desk.spec(**request)
    assert places(spec.guides) == [
        ("first_frame", 0),
        ("last_frame", 38),
        ("keyframes[0]", 30),
        ("keyframes[1]", 37),
        ("keyframes[2]", 3),
    ]
    assert [(guide.fit, guide.shown) for guide in spec.guides] == [
        ("stretch", True),
        ("cover", True),
        *[("cover", False)] * 3,
    ]
    assert spec.task is Task.FL2VA


def test_beside_references_no_guide_is_shown(desk: Desk) -> None:
    still = medium(picture(64, 64))
    spec = desk.spec(references=[{"type": "image", "source": still}], first_frame=still, last_frame=still, frames=22)
    assert [(guide.fit, guide.shown) for guide in spec.guides] == [("stretch", False), ("cover", False)]


@pytest.mark.parametrize(
    ("seconds", "used"), [(1.0, 22), (22 / 24, 22), (21 / 24, 5), (4 / 24, 1), (1 / 24, 1), (20.0, 39)]
)
def test_clips_are_cut_down_to_the_grid(desk: Desk, seconds: float, used: int) -> None:
    if seconds == 20.0:
        assert desk.offences(keyframes=[video(0, seconds)], frames=39).keys() == {"keyframes[0].frame"}
        return
    (guide,) = desk.spec(keyframes=[video(0, seconds)], frames=39).guides
    assert guide.clip == ClipInput(guide.clip.file, 0, used) if guide.clip else False
    assert (guide.picture, guide.sound) == (None, None)


@pytest.mark.parametrize(("frame", "fits"), [(0, True), (17, True), (18, False), (-22, True), (-21, False)])
def test_a_clip_fits_behind_its_frame(desk: Desk, frame: int, fits: bool) -> None:
    request: dict[str, Any] = {"keyframes": [video(frame)], "frames": 39}
    if fits:
        desk.spec(**request)
    else:
        assert desk.offences(**request)["keyframes[0].frame"].legal == "0..17"


@pytest.mark.parametrize("frame", [39, -40, 10**9])
def test_a_frame_outside_the_clip_is_refused(desk: Desk, frame: int) -> None:
    assert desk.offences(keyframes=[image(frame)], frames=39).keys() == {"keyframes[0].frame"}


@pytest.mark.parametrize(
    ("request_", "offenders"),
    [
        ({"keyframes": [image(3), image(-36)]}, {"keyframes[0].frame", "keyframes[1].frame"}),
        ({"keyframes": [image(0)], "first_frame": medium(picture(64, 64))}, {"keyframes[0].frame", "first_frame"}),
        ({"keyframes": [voice(38)], "last_frame": medium(picture(64, 64))}, {"keyframes[0].frame", "last_frame"}),
        (
            {"continue_from": {**medium(clip(2)), "frames": 22}, "first_frame": medium(picture(64, 64))},
            {"continue_from", "first_frame"},
        ),
    ],
)
def test_two_guides_on_one_frame_are_both_named(desk: Desk, request_: dict[str, Any], offenders: set[str]) -> None:
    assert desk.offences(**request_, frames=39).keys() == offenders


def test_sounds_of_keyframes(desk: Desk) -> None:
    def heard(keyframe: dict[str, Any]) -> tuple[str, float, float | None] | None:
        (guide,) = desk.spec(keyframes=[keyframe], frames=39).guides
        return None if guide.sound is None else (guide.sound.file.field, guide.sound.start, guide.sound.seconds)

    assert heard(voice(38)) == ("keyframes[0].audio", 0.0, None)
    assert heard(video(0, heard=1.0)) is None
    assert heard(video(0, heard=1.0, audio="auto")) == ("keyframes[0].video", 0.0, None)
    assert heard(video(0, audio="auto")) is None
    assert heard(video(0, heard=1.0, audio=medium(sound(9)))) == ("keyframes[0].audio", 0.0, None)
    assert heard(image(5, audio=medium(sound(1)))) == ("keyframes[0].audio", 0.0, None)


def test_a_sound_without_a_latent_is_refused(desk: Desk) -> None:
    assert desk.offences(keyframes=[voice(0, 0.02)]).keys() == {"keyframes[0].audio"}
    warnings = desk.admit({"keyframes": [video(0, 0.2, audio="auto")], "frames": 22}).warnings
    assert any("keyframes[0].video has no sound" in warning for warning in warnings)


def test_a_clip_continues_a_medium(desk: Desk) -> None:
    spec = desk.spec(continue_from=medium(clip(3, sound=3.0)), frames=39)
    (guide,) = spec.guides
    assert guide.clip is not None and spec.task is Task.I2VA
    assert (guide.field, guide.frame, guide.fit, guide.shown) == ("continue_from", 0, "cover", False)
    assert guide.clip == ClipInput(guide.clip.file, 50, 22)
    assert guide.sound == SoundInput(guide.clip.file, 50 / 24, 22 / 24)


@pytest.mark.parametrize(("heard", "audio"), [(None, True), (3.0, False), (1.0, True)])
def test_a_continuation_without_sound(desk: Desk, heard: float | None, audio: bool) -> None:
    job = desk.admit({"continue_from": {**medium(clip(3, sound=heard)), "audio": audio}, "frames": 39})
    assert job.spec.guides[0].sound is None
    assert any("no sound" in warning for warning in job.warnings) == audio


@pytest.mark.parametrize(("frames", "target", "there"), [(22, 39, 21), (20, 39, 72), (39, 39, 72), (56, 39, 72)])
def test_frames_that_cant_be_continued(desk: Desk, frames: int, target: int, there: int) -> None:
    request = {"continue_from": {**medium(clip(there / 24)), "frames": frames}, "frames": target}
    (field,) = found = desk.offences(**request)
    assert field == "continue_from.frames"
    if there < frames:
        assert str(there) in found[field].message


def test_a_clip_continues_a_job_on_its_canvas(desk: Desk) -> None:
    job = desk.admit({"width": 96, "height": 160, "frames": 73})
    assert job.spec.tail is not None
    assert (job.spec.tail.path, job.spec.tail.frames) == (desk.folders.tails / f"{job.id}.mkv", 56)
    desk.succeed(job, tail=clip(56 / 24, 96, 160, sound=56 / 24))
    spec = desk.bare(continue_from={"job": job.id}, frames=39)
    assert (spec.width, spec.height) == (96, 160)
    (guide,) = spec.guides
    assert guide.clip is not None and guide.clip.first == 34
    # What the next job was given stays when the tail goes.
    job.spec.tail.path.unlink()
    assert guide.clip.file.path.read_bytes() == clip(56 / 24, 96, 160, sound=56 / 24)
    assert desk.bare(continue_from=medium(clip(3, 96, 160)), frames=39).width == 768


def test_more_frames_than_a_tail_has(desk: Desk) -> None:
    job_id = desk.succeed(desk.admit({"frames": 73}), tail=clip(56 / 24))
    message = desk.offences(continue_from={"job": job_id, "frames": 73}, frames=124)["continue_from.frames"].message
    assert "56" in message


@pytest.mark.parametrize("field", ["continue_from", "source"])
def test_a_job_that_has_nothing_to_give(desk: Desk, field: str) -> None:
    waiting = desk.admit({}).id
    gone = desk.admit({})
    desk.succeed(gone)
    gone.spec.output.unlink()
    named = {job_id: desk.offences(**{field: {"job": job_id}}) for job_id in ("01NOSUCH", waiting, gone.id)}
    assert all(offences.keys() >= {f"{field}.job"} for offences in named.values())
    messages = [offences[f"{field}.job"].message for offences in named.values()]
    assert ["no job" in messages[0], "failed" in messages[1], "nothing is kept" in messages[2]] == [True] * 3


def test_tails_of_failed_and_replaced_clips_go(desk: Desk) -> None:
    failed, replaced = desk.admit({}), desk.admit({"output": "a.mp4"})
    desk.succeed(replaced, tail=b"tail")
    assert desk.folders.tail_of(replaced.id).exists()
    assert failed.spec.tail is not None
    failed.spec.tail.path.write_bytes(b"tail")
    desk.queue._end(failed.id, desk.queue.table.get(failed.id).status)
    assert not failed.spec.tail.path.exists()
    desk.succeed(desk.admit({"output": "a.mp4", "overwrite": True}), tail=b"tail")
    assert not desk.folders.tail_of(replaced.id).exists()


def test_old_tails_make_room(desk: Desk) -> None:
    for number in range(4):
        desk.folders.tail_of(f"01{number}").write_bytes(b"x" * 10)
    desk.folders.trim_tails(25)
    assert sorted(tail.name for tail in desk.folders.tails.iterdir()) == ["012.mkv", "013.mkv"]
    desk.folders.trim_tails(1)
    assert [tail.name for tail in desk.folders.tails.iterdir()] == ["013.mkv"]

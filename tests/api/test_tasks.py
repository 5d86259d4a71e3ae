"""Inputs of every task as the request alone judges them: their form, the task they mean, and where guides lie."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.api.judging.resolve import Resolved, resolve_request
from h3runtime.api.request import BODIES, MediaBody, read_body
from h3runtime.api.rules import Verdict
from h3runtime.core import AREA_CAP, MIN_FRAMES, Task
from h3runtime.errors import Offence
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size


def shown(value: object) -> str | None:
    """A short name; None leaves a set, whose order differs between processes, to tests/conftest.py."""
    return None if isinstance(value, set | frozenset) else ascii(value)[:60]


MEDIUM = {"upload": "a"}
IMAGE = {"type": "image", "source": MEDIUM}
VIDEO = {"type": "video", "source": MEDIUM}
SOUND = {"type": "audio", "source": MEDIUM}


def at(frame: int, **fields: Any) -> dict[str, Any]:
    return {"image": MEDIUM, "frame": frame, **fields}


def judged(anchors: dict[str, Size] | None = None, source_frames: int | None = None, **fields: Any) -> Any:
    """What became of a request, every offence of it, and the warnings."""
    read = read_body({"prompt": "x", **fields})
    verdict = Verdict(read)
    resolved = resolve_request(read.body, anchors or {}, AREA_CAP, 362, verdict, source_frames)
    return resolved, [*read.offences, *verdict.offences], verdict.warnings


def offences(**fields: Any) -> list[Offence]:
    return list(judged(**fields)[1])


def told(**fields: Any) -> dict[str, str]:
    """Field -> what is legal, and that each field is told once."""
    found = offences(**fields)
    assert len({offence.field for offence in found}) == len(found), found
    return {offence.field: offence.legal for offence in found}


def resolved(**fields: Any) -> Resolved:
    made, wrong, _ = judged(**fields)
    assert not wrong
    assert isinstance(made, Resolved)
    return made


MEANT: list[tuple[dict[str, Any], Task]] = [
    ({}, Task.T2VA),
    ({"keyframes": [], "references": []}, Task.T2VA),
    ({"source": MEDIUM, "frames": 5, "masks": {"video": MEDIUM}}, Task.T2VA),
    ({"first_frame": MEDIUM}, Task.I2VA),
    ({"continue_from": {"job": "x"}}, Task.I2VA),
    ({"keyframes": [at(0)]}, Task.I2VA),
    ({"keyframes": [at(56), at(-2)]}, Task.I2VA),
    ({"first_frame": MEDIUM, "keyframes": [at(56)]}, Task.I2VA),
    ({"last_frame": MEDIUM}, Task.L2VA),
    ({"keyframes": [at(-1)]}, Task.L2VA),
    ({"keyframes": [at(123)]}, Task.L2VA),
    ({"keyframes": [at(21)], "frames": 22}, Task.L2VA),
    ({"keyframes": [at(56), at(-1)]}, Task.L2VA),
    ({"first_frame": MEDIUM, "last_frame": MEDIUM}, Task.FL2VA),
    ({"continue_from": {"job": "x"}, "last_frame": MEDIUM}, Task.FL2VA),
    ({"keyframes": [at(0), at(-1)]}, Task.FL2VA),
    ({"keyframes": [at(-124)], "last_frame": MEDIUM}, Task.FL2VA),
    ({"first_frame": MEDIUM, "keyframes": [at(123)]}, Task.FL2VA),
    ({"references": [IMAGE]}, Task.REF2VA),
    ({"references": [IMAGE], "first_frame": MEDIUM, "last_frame": MEDIUM, "keyframes": [at(9)]}, Task.REF2VA),
]


@pytest.mark.parametrize(("inputs", "task"), MEANT, ids=shown)
def test_the_inputs_mean_a_task_and_stating_it_changes_nothing(inputs: dict[str, Any], task: Task) -> None:
    assert resolved(**inputs).task == task
    assert resolved(**inputs, task=task) == resolved(**inputs)
    assert type(read_body({"prompt": "x", **inputs, "task": task}).body) is BODIES[task]


STATED: list[tuple[str, dict[str, Any], set[str]]] = [
    ("t2va", {"keyframes": [at(3)]}, {"keyframes"}),
    ("t2va", {"references": [IMAGE], "continue_from": {"job": "x"}}, {"references", "continue_from"}),
    ("i2va", {}, {"first_frame"}),
    ("i2va", {"source": MEDIUM, "frames": 5}, {"first_frame"}),
    ("i2va", {"last_frame": MEDIUM}, {"last_frame"}),
    ("i2va", {"references": [IMAGE], "first_frame": MEDIUM}, {"references"}),
    ("l2va", {"keyframes": [at(3)]}, {"last_frame"}),
    ("l2va", {"keyframes": [at(-1)], "first_frame": MEDIUM}, {"first_frame"}),
    ("l2va", {"last_frame": MEDIUM, "continue_from": {"job": "x"}}, {"continue_from"}),
    ("l2va", {"last_frame": MEDIUM, "references": [IMAGE]}, {"references"}),
    ("fl2va", {"first_frame": MEDIUM}, {"last_frame"}),
    ("fl2va", {"keyframes": [at(56)]}, {"first_frame", "last_frame"}),
    ("fl2va", {"first_frame": MEDIUM, "last_frame": MEDIUM, "references": [IMAGE]}, {"references"}),
    ("ref2va", {}, {"references"}),
    ("ref2va", {"first_frame": MEDIUM, "references": []}, {"references"}),
]


@pytest.mark.parametrize(("task", "inputs", "fields"), STATED, ids=shown)
def test_a_contradiction_names_the_task_and_the_input(task: str, inputs: dict[str, Any], fields: set[str]) -> None:
    assert told(task=task, **inputs).keys() == {"task"} | fields


@pytest.mark.parametrize("task", ["i2va", "l2va", "fl2va", "ref2va"])
def test_more_keyframes_go_with_every_task_that_has_guides(task: str) -> None:
    ends = {"i2va": ["first_frame"], "l2va": ["last_frame"], "fl2va": ["first_frame", "last_frame"], "ref2va": []}
    inputs = dict.fromkeys(ends[task], MEDIUM) | ({"references": [IMAGE]} if task == "ref2va" else {})
    assert resolved(task=task, keyframes=[at(10), at(-10)], **inputs).task == task


def test_a_task_stated_where_two_would_do_is_kept() -> None:
    assert resolved(task="i2va", keyframes=[at(-1)]).task == Task.I2VA
    assert resolved(task="l2va", keyframes=[at(0)], last_frame=MEDIUM).task == Task.L2VA


def test_where_an_input_is_broken_none_is_called_missing() -> None:
    assert told(task="i2va", first_frame={}).keys() == {"first_frame"}
    assert told(task="l2va", keyframes=[at(80)], frames=81).keys() == {"frames"}


def test_every_task_judges_a_field_in_the_same_words() -> None:
    wrong = {"seed": 1.5, "first_frame": {}, "keyframes": [{"fram": 1}], "references": [{"type": "gif"}], "format": 3}
    words = [offences(**wrong, task=task) for task in Task]
    assert len(words[0]) == 7
    assert all(others == words[0] for others in words[1:])


GUIDES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"keyframes": [at(124)]}, {"keyframes[0].frame": "-124..123"}),
    ({"keyframes": [at(0), at(-125)]}, {"keyframes[1].frame": "-124..123"}),
    ({"keyframes": [at(10**40)], "frames": 5}, {"keyframes[0].frame": "-5..4"}),
    ({"keyframes": [at(7), at(7)]}, {"keyframes[0].frame": "one", "keyframes[1].frame": "one"}),
    ({"keyframes": [at(-1), at(123)]}, {"keyframes[0].frame": "one", "keyframes[1].frame": "one"}),
    ({"first_frame": MEDIUM, "keyframes": [at(0)]}, {"first_frame": "one", "keyframes[0].frame": "one"}),
    ({"last_frame": MEDIUM, "keyframes": [at(-1)]}, {"last_frame": "one", "keyframes[0].frame": "one"}),
    ({"first_frame": MEDIUM, "continue_from": {"job": "x"}}, {"first_frame": "one", "continue_from": "one"}),
    (
        {"keyframes": [at(200), at(3), at(3)], "frames": 81},
        dict.fromkeys(("keyframes[1].frame", "keyframes[2].frame", "frames"), ""),
    ),
    ({"continue_from": {"job": "x", "frames": 23}}, {"continue_from.frames": "22 or 39"}),
    ({"continue_from": {"job": "x", "frames": 124}}, {"continue_from.frames": "107"}),
    ({"continue_from": {"job": "x", "frames": 0}}, {"continue_from.frames": "5"}),
    ({"continue_from": {"job": "x"}, "frames": 22}, {"continue_from.frames": ": 5"}),
    ({"continue_from": {"job": "x", "frames": 5}, "frames": 5}, {"continue_from.frames": "more than 5"}),
]


@pytest.mark.parametrize(("fields", "legal"), GUIDES, ids=shown)
def test_guides_that_cannot_be_are_told_by_frame(fields: dict[str, Any], legal: dict[str, str]) -> None:
    found = told(**fields)
    assert found.keys() == legal.keys()
    assert all(word in found[field] for field, word in legal.items()), found


def test_a_clash_names_the_other_guide() -> None:
    first, second = offences(keyframes=[at(7), at(-117)])
    assert "keyframes[1]" in first.message and "keyframes[0]" in second.message


@given(frames=st.sampled_from([5, 22, 124, 362]), data=st.data())
def test_keyframes_count_from_either_end(frames: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, frames - 1), unique=True, max_size=6))
    signs = data.draw(st.lists(st.booleans(), min_size=len(places), max_size=len(places)))
    keyframes = [at(place - frames if back else place) for place, back in zip(places, signs, strict=True)]
    found = resolved(frames=frames, keyframes=keyframes).guide_places
    assert found == {f"keyframes[{index}]": place for index, place in enumerate(places)}


def test_guides_are_listed_in_packed_order() -> None:
    inputs = {"keyframes": [at(90), at(56)], "last_frame": MEDIUM, "first_frame": MEDIUM}
    places = {"first_frame": 0, "last_frame": 123, "keyframes[0]": 90, "keyframes[1]": 56}
    assert list(resolved(**inputs).guide_places.items()) == list(places.items())


FORMS: list[tuple[dict[str, Any], set[str]]] = [
    ({"keyframes": [{"frame": 0}]}, {"keyframes[0]"}),
    ({"keyframes": [{"frame": 0, "audio": "off"}]}, {"keyframes[0]"}),
    ({"keyframes": [{"frame": 0, "audio": "auto"}]}, {"keyframes[0].audio"}),
    ({"keyframes": [at(0, audio="auto")]}, {"keyframes[0].audio"}),
    ({"keyframes": [at(0, audio="loud")]}, {"keyframes[0].audio"}),
    ({"keyframes": [at(0, audio={})]}, {"keyframes[0].audio"}),
    ({"keyframes": [at(0, audio={"uplaod": "a"})]}, {"keyframes[0].audio.uplaod"}),
    ({"keyframes": [at(0, video=MEDIUM)]}, {"keyframes[0]"}),
    ({"keyframes": [at(0), {"image": MEDIUM}]}, {"keyframes[1].frame"}),
    ({"keyframes": [{"image": MEDIUM, "frame": True}]}, {"keyframes[0].frame"}),
    ({"keyframes": [{"image": None, "video": MEDIUM, "frame": 1}]}, {"keyframes[0].image"}),
    ({"keyframes": [None, "x"]}, {"keyframes[0]", "keyframes[1]"}),
    ({"references": [{"type": "image"}]}, {"references[0].source"}),
    ({"references": [IMAGE, {"source": MEDIUM}]}, {"references[1].type"}),
    ({"references": [{"type": "text", "source": MEDIUM}]}, {"references[0].type"}),
    ({"references": [VIDEO | {"start": -1}]}, {"references[0].start"}),
    ({"references": [VIDEO | {"start": float("nan")}]}, {"references[0].start"}),
    ({"references": [VIDEO | {"start": "1"}]}, {"references[0].start"}),
    ({"references": [VIDEO | {"audio": True}]}, {"references[0].audio"}),
    ({"references": [VIDEO | {"audio": None}]}, {"references[0].audio"}),
    ({"references": [IMAGE | {"size": "huge"}]}, {"references[0].size"}),
    ({"references": [IMAGE] * 65}, {"references"}),
    ({"continue_from": {}}, {"continue_from"}),
    ({"continue_from": {"job": "x", "upload": "a"}}, {"continue_from"}),
    ({"continue_from": {"frames": 22}}, {"continue_from"}),
    ({"continue_from": {"job": "x", "frames": 22.0}}, {"continue_from.frames"}),
    ({"continue_from": {"job": "x", "audio": 1}}, {"continue_from.audio"}),
    ({"continue_from": {"job": None}}, {"continue_from.job"}),
    ({"source": "x"}, {"source"}),
    ({"source": {"job": "x", "frames": 5}}, {"source.frames"}),
    ({"masks": {}, "source": MEDIUM}, {"masks"}),
    ({"masks": {"video": None}, "source": MEDIUM}, {"masks.video"}),
    ({"masks": {"audio": {"start": 0}}, "source": MEDIUM}, {"masks.audio"}),
    ({"masks": {"audio": [{"start": 1, "end": 1, "value": 2}]}, "source": MEDIUM}, {"masks.audio[0].value"}),
    ({"masks": {"audio": [{"start": 1, "end": 1, "value": 1}]}, "source": MEDIUM}, {"masks.audio[0].end"}),
    ({"masks": {"audio": [{"start": -1, "end": 1, "value": 0}]}, "source": MEDIUM}, {"masks.audio[0].start"}),
    ({"prompt": {"shots": [{"description": "x", "dialogue": [{"lines": "y"}]}]}}, {
        "prompt.shots[0].dialogue[0].speaker", "prompt.shots[0].dialogue[0].line", "prompt.shots[0].dialogue[0].lines"
    }),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "names"), FORMS, ids=shown)
def test_a_wrong_form_is_told_by_its_bracketed_name(fields: dict[str, Any], names: set[str]) -> None:
    assert told(**fields).keys() == names


@pytest.mark.parametrize(
    ("fields", "guess"),
    [
        ({"referances": [IMAGE]}, "references"),
        ({"keyframes": [at(0, fram=1)]}, "frame"),
        ({"references": [IMAGE | {"sise": "max"}]}, "size"),
        ({"references": [{"type": "image", "source": {"uploda": "a"}}]}, "upload"),
        ({"references": [VIDEO | {"audio": {"pth": "a"}}]}, "path"),
        ({"continue_from": {"jop": "x"}}, "job"),
        ({"masks": {"audio": [{"start": 0, "end": 1, "vaule": 1, "value": 1}]}}, "value"),
        ({"prompt": {"shots": [{"description": "x", "dialog": []}]}}, "dialogue"),
    ],
    ids=shown,
)
def test_a_misspelt_field_is_guessed_from_the_body_it_stands_in(fields: dict[str, Any], guess: str) -> None:
    assert any(f"did you mean {guess}?" in offence.message for offence in offences(**fields))


def test_broken_items_of_all_inputs_are_told_together_in_order() -> None:
    fields = {
        "references": [{"type": "gif", "source": {}}, IMAGE, SOUND | {"start": -1}],
        "task": "v2v",
        "keyframes": [at(0), {"image": {"url": 3}, "frame": 1.5, "x": 1}],
        "masks": {"video": {}, "audio": [{"end": 1}]},
    }
    assert [offence.field for offence in offences(**fields)] == [
        "references[0].type",
        "references[0].source",
        "references[2].start",
        "task",
        "keyframes[1].image.url",
        "keyframes[1].frame",
        "keyframes[1].x",
        "masks.video",
        "masks.audio[0].start",
        "masks.audio[0].value",
    ]


COUNTS: list[tuple[list[dict[str, Any]], set[str]]] = [
    ([IMAGE] * 9 + [VIDEO] * 3, set()),
    ([IMAGE] * 9 + [SOUND] * 3, set()),
    ([IMAGE] * 10, {"references[9]"}),
    ([IMAGE] * 11 + [SOUND], {"references[9]", "references[10]"}),
    ([VIDEO] * 4, {"references[3]"}),
    ([IMAGE] + [SOUND] * 4, {"references[4]"}),
    ([VIDEO | {"audio": MEDIUM}] * 3 + [SOUND], {"references[3]"}),
    ([SOUND] * 3 + [VIDEO | {"audio": MEDIUM}], {"references[3].audio"}),
    ([VIDEO | {"audio": "auto"}] * 3 + [SOUND] * 3, set()),
    ([IMAGE] * 9 + [VIDEO] * 3 + [SOUND], {"references[12]"}),
    ([IMAGE] * 9 + [VIDEO] * 2 + [VIDEO | {"audio": MEDIUM}], {"references[11].audio"}),
    ([SOUND], {"references"}),
    ([SOUND] * 4, {"references", "references[3]"}),
]


@pytest.mark.parametrize(("references", "fields"), COUNTS, ids=lambda value: f"{len(value)}")
def test_the_official_limits_count_files(references: list[dict[str, Any]], fields: set[str]) -> None:
    assert told(references=references).keys() == fields


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_a_field_that_does_nothing_for_its_type_is_refused(kind: str) -> None:
    idle = {"image": {"audio", "start"}, "video": {"size"}, "audio": {"audio", "size"}}[kind]
    reference = {"type": kind, "source": MEDIUM, "audio": "off", "start": 1, "size": "max"}
    assert told(references=[IMAGE, reference]).keys() == {f"references[1].{name}" for name in idle}


MASKS: list[tuple[dict[str, Any], set[str]]] = [
    ({"masks": {"video": MEDIUM}}, {"masks"}),
    ({"masks": {"video": MEDIUM}, "source": {}}, {"source"}),
    ({"source": MEDIUM, "masks": {"audio": [{"start": 0, "end": 124 / 24, "value": 0.5}]}}, set()),
    ({"source": MEDIUM, "masks": {"audio": [{"start": 6, "end": 7, "value": 0}]}},
     {"masks.audio[0].start", "masks.audio[0].end"}),
    ({"source": MEDIUM, "masks": {"audio": [{"start": 2, "end": 3, "value": 0}, {"start": 0, "end": 2, "value": 1}]}},
     set()),
    ({"source": MEDIUM, "masks": {"audio": [{"start": 0, "end": 3, "value": 0}, {"start": 1, "end": 2, "value": 1},
                                            {"start": 2.5, "end": 4, "value": 1}]}},
     {"masks.audio[1].start", "masks.audio[2].start"}),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "names"), MASKS, ids=shown)
def test_masks_need_a_source_and_spans_that_lie_apart_in_the_clip(fields: dict[str, Any], names: set[str]) -> None:
    assert told(frames=124, **fields).keys() == names


def test_a_source_without_masks_is_warned_of() -> None:
    assert any("masks" in warning for warning in judged(source=MEDIUM, frames=124, source_frames=124)[2])
    assert not judged(source=MEDIUM, frames=124, masks={"video": MEDIUM}, source_frames=124)[2]


@pytest.mark.parametrize(
    ("there", "wish", "frames"),
    [(124, {}, 124), (130, {}, 124), (5, {}, 5), (1000, {}, 362), (130, {"frames": 22}, 22), (50, {"seconds": 2}, 56)],
)
def test_a_source_gives_the_clip_its_length(there: int, wish: dict[str, Any], frames: int) -> None:
    made, wrong, _ = judged(source=MEDIUM, masks={"video": MEDIUM}, source_frames=there, **wish)
    assert made.frames == frames
    assert [offence.field for offence in wrong] == (["source"] if there < frames else [])


@given(st.integers(1, 2000))
def test_a_length_taken_from_a_source_is_legal_and_never_longer(there: int) -> None:
    made, wrong, _ = judged(source=MEDIUM, source_frames=there)
    assert geometry.is_legal_frames(made.frames) and made.frames <= 362
    assert (made.frames <= there) is (not wrong) is (there >= MIN_FRAMES)


def test_what_hangs_on_an_unknown_length_is_left_unjudged() -> None:
    source = {"source": MEDIUM, "masks": {"audio": [{"start": 9, "end": 10, "value": 0}]}}
    assert not told(keyframes=[at(200)], **source)
    assert told(keyframes=[at(200)], **source, source_frames=124).keys() == {
        "keyframes[0].frame",
        "masks.audio[0].start",
        "masks.audio[0].end",
    }


def test_the_first_anchor_gives_the_canvas_and_references_never_do() -> None:
    tall, wide = Size(900, 1600), Size(1600, 900)
    assert resolved(anchors={"source": tall, "keyframes[0].image": wide}, source=MEDIUM, frames=5).size == (768, 1344)
    assert resolved(references=[IMAGE]).size == (1344, 768)
    _, wrong, _ = judged(anchors={"keyframes[0].image": Size(100, 500)}, keyframes=[at(3)])
    assert [offence.field for offence in wrong] == ["keyframes[0].image"]
    assert not judged(anchors={"keyframes[0].image": Size(100, 500)}, keyframes=[at(3)], aspect_ratio="1:1")[1]


def test_a_job_that_goes_on_keeps_its_canvas() -> None:
    anchors = {"continue_from": Size(64, 96)}
    assert resolved(anchors=anchors, continue_from={"job": "x"}).size == (64, 96)
    assert resolved(anchors=anchors, continue_from={"job": "x"}, short_edge=512).size == (512, 768)
    assert resolved(anchors=anchors, continue_from=MEDIUM).size == (768, 1152)


def test_what_is_stretched_is_warned_of() -> None:
    size = {"width": 64, "height": 64}
    for name, value in (("first_frame", MEDIUM), ("source", MEDIUM)):
        _, _, warnings = judged(anchors={name: Size(200, 100)}, frames=124, **{name: value}, **size)
        assert any(warning.startswith(f"{name} is 200x100") for warning in warnings)
    assert not judged(anchors={"last_frame": Size(200, 100)}, last_frame=MEDIUM, **size)[2]


def test_a_place_of_a_clip_can_be_read_as_a_medium() -> None:
    body = read_body({"prompt": "x", "continue_from": {"path": "a", "frames": 5}, "source": {"job": "y"}}).body
    assert body.continue_from is not None and body.continue_from.medium == MediaBody(path="a")
    assert body.source is not None and body.source.medium is None

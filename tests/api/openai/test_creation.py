"""What a video's fields mean as a request of `POST /generate`, from JSON and from forms, and errors on the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.api.form import Part
from h3runtime.api.openai.brackets import values_of
from h3runtime.api.openai.creation import KNOWN, PLAIN, Creation, creation_of
from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_canvas
from h3runtime.errors import BadMedia, H3Error, MalformedRequest, ModelNotFound, NotFound, Offence

URL = "data:image/png;base64,AAAA"


def made(files: dict[str, Path] | None = None, **fields: Any) -> Creation:
    return creation_of({"prompt": "p", **fields}, files or {}, [])


def request_of(files: dict[str, Path] | None = None, **fields: Any) -> dict[str, Any]:
    creation = made(files, **fields)
    assert creation.delivery.offences == []
    return creation.delivery.request


def offenders(**fields: Any) -> list[str]:
    return [offence.field for offence in made(**fields).delivery.offences]


@pytest.mark.parametrize("model", [None, "minimax-h3", "h3", "sora-2", "sora-2-pro-2025-10-06"])
def test_models_that_mean_what_is_loaded(model: str | None) -> None:
    assert request_of(model=model) == {"prompt": "p", "seconds": 4.0}


@pytest.mark.parametrize("model", ["sora", "gpt-4", "", "H3", 3, ["h3"], "sora-2\n"])
def test_other_models_are_not_there(model: Any) -> None:
    with pytest.raises(ModelNotFound) as raised:
        made(model=model)
    assert [offence.field for offence in raised.value.offences] == ["model"]


@pytest.mark.parametrize(("seconds", "meant"), [("8", 8.0), ("4.5", 4.5), (12, 12), (0.2, 0.2), (None, 4.0)])
def test_lengths(seconds: Any, meant: float) -> None:
    assert request_of(seconds=seconds)["seconds"] == meant


@pytest.mark.parametrize("seconds", ["", "four", "-4", "nan", "1e3", " 4", True, ["4"], {}])
def test_what_is_no_length(seconds: Any) -> None:
    assert offenders(seconds=seconds) == ["seconds"]


def test_the_default_length_gives_way_to_ours() -> None:
    assert request_of(frames=22) == {"prompt": "p", "frames": 22}
    assert "seconds" not in request_of(source={"job": "J"})


@pytest.mark.parametrize(
    ("size", "canvas"),
    [
        ("1280x720", (1344, 768)),
        ("1792x1024", (1344, 768)),
        ("720x1280", (768, 1344)),
        ("1024x1792", (768, 1344)),
        ("960x544", (960, 544)),
        (None, (1344, 768)),
    ],
)
def test_sizes_become_canvases(size: str | None, canvas: tuple[int, int]) -> None:
    read = read_body(request_of(size=size))
    verdict = Verdict(read)
    assert judge_canvas(read.body, {}, 1344 * 768, verdict) == canvas and not verdict.offences


@pytest.mark.parametrize("size", ["", "wide", "1280*720", "x", "1280x720x3", 720, ["1280x720"], "-64x64"])
def test_what_is_no_size(size: Any) -> None:
    assert offenders(size=size) == ["size"]


def test_a_size_beside_another_one() -> None:
    assert offenders(size="64x64", width=96) == ["size"] == offenders(size="1280x720", aspect_ratio="1:1")
    assert request_of(size="64x96", width=64)["height"] == 96


@pytest.mark.parametrize(
    ("reference", "medium"),
    [
        ({"image_url": URL}, {"data": URL}),
        ({"image_url": "https://a.example/x.png"}, {"url": "https://a.example/x.png"}),
        (URL, {"data": URL}),
        ({"image_url": URL, "file_id": None}, {"data": URL}),
    ],
)
def test_references_become_the_first_frame(reference: Any, medium: dict[str, str]) -> None:
    assert request_of(input_reference=reference)["first_frame"] == medium


def test_an_uploaded_reference_is_named_and_others_are_left_out() -> None:
    files = {"input_reference": Path("a"), "stray": Path("b"), "mine": Path("c")}
    creation = made(files, last_frame={"upload": "mine"})
    assert creation.delivery.request["first_frame"] == {"upload": "input_reference"}
    assert creation.delivery.files == {"input_reference": Path("a"), "mine": Path("c")}


@pytest.mark.parametrize("reference", [3, [], {}, {"image_url": 3}, {"image_url": URL, "file_id": "f"}])
def test_what_is_no_reference(reference: Any) -> None:
    assert offenders(input_reference=reference) == ["input_reference"]


def test_a_reference_beside_a_first_frame_and_a_file_that_was_never_kept() -> None:
    assert offenders(input_reference=URL, first_frame={"data": URL}) == ["input_reference"]
    with pytest.raises(NotFound, match="no file 'f1'"):
        made(input_reference={"file_id": "f1"})


def test_unknown_names_are_ignored_and_ours_pass_as_they_are() -> None:
    fields = {"steps": "2", "seed": None, "n": 2, "user": "me", "quality_preset": 1}
    assert request_of(**fields) == {"prompt": "p", "seconds": 4.0, "steps": "2", "seed": None, "n": 2}


def test_errors_come_back_under_the_names_that_were_used() -> None:
    creation = made(size="100x64", input_reference=URL)
    offences = [Offence("width", "is odd", "96"), Offence("first_frame.data", "is bad"), Offence("steps", "are many")]
    told = creation.told(BadMedia("x", offences))
    assert type(told) is BadMedia and told.message == "size: is odd; input_reference: is bad; steps: are many"
    assert [offence.field for offence in told.offences] == ["size", "input_reference", "steps"]
    assert made().told(error := BadMedia("x", offences)) is error


def form(*parts: tuple[str, str], media_type: str = "") -> tuple[dict[str, Any], list[Offence]]:
    return values_of([(Part(name, media_type, False), text.encode()) for name, text in parts], KNOWN, PLAIN)


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        ([("prompt", "42"), ("steps", "2"), ("n", "x")], {"prompt": "42", "steps": 2, "n": "x"}),
        ([("save_latents", "true"), ("seed", "18446744073709551615")], {"save_latents": True, "seed": 2**64 - 1}),
        ([("format", '{"crf": 20}'), ("task", "t2va")], {"format": {"crf": 20}, "task": "t2va"}),
        ([("format[crf]", "20"), ("format[audio_bitrate]", "96k")], {"format": {"crf": 20, "audio_bitrate": "96k"}}),
        (
            [("references[][type]", "image"), ("references[][source][data]", "1")],
            {"references": [{"type": "image", "source": {"data": "1"}}]},
        ),
        ([("loras[][name]", "1"), ("loras[][name]", "2")], {"loras": [{"name": "1"}, {"name": "2"}]}),
        ([("keyframes[1][frame]", "-1"), ("keyframes[0][frame]", "0")], {"keyframes": [{"frame": 0}, {"frame": -1}]}),
        ([("input_reference[image_url]", URL)], {"input_reference": {"image_url": URL}}),
        (
            [("prompt[shots][][description]", "7"), ("prompt[shots][][at]", "0.5")],
            {"prompt": {"shots": [{"description": "7", "at": 0.5}]}},
        ),
        ([("diagnostics[latents]", "true"), ("diagnostics[odd]", "1")], {"diagnostics": {"latents": True, "odd": "1"}}),
        ([("seconds", "null"), ("model", "3")], {"seconds": "null", "model": "3"}),
        ([("user", "me"), ("odd[", "1"), ("[steps]", "1")], {}),
        (
            [("output", "7.mp4"), ("attention", "null"), ("source", "null")],
            {"output": "7.mp4", "attention": "null", "source": None},
        ),
    ],
)
def test_parts_of_forms(parts: list[tuple[str, str]], values: dict[str, Any]) -> None:
    assert form(*parts) == (values, [])


@pytest.mark.parametrize(
    "parts",
    [
        [("steps", "2"), ("steps", "3")],
        [("format", "{}"), ("format[crf]", "2")],
        [("references[][type]", "image"), ("references[][type]", "audio"), ("references[][start]", "1")],
        [("keyframes[1][frame]", "0")],
        [("format" + "[a]" * 2000, "1")],
        [("keyframes[][a][]", "1"), ("keyframes[][a][]", "2")],
    ],
)
def test_parts_that_mean_no_one_value(parts: list[tuple[str, str]]) -> None:
    values, offences = form(*parts)
    assert values == {} and [offence.field for offence in offences] == [parts[0][0].partition("[")[0]]


def test_json_parts_and_parts_that_are_no_text() -> None:
    assert form(("prompt", '{"shots": []}'), media_type="application/json")[0] == {"prompt": {"shots": []}}
    with pytest.raises(MalformedRequest, match="not UTF-8"):
        values_of([(Part("prompt", "", False), b"\xff")], KNOWN)


NAMES = st.sampled_from(["format", "keyframes", "prompt", "steps", "seed", "references", "size"])
BRACKETS = st.lists(st.sampled_from(["[]", "[0]", "[1]", "[crf]", "[frame]", "[", "]", "[a]"]), max_size=4)


@given(st.lists(st.tuples(NAMES, BRACKETS, st.text(max_size=5)), max_size=6))
def test_any_form_is_read_or_refused(parts: list[tuple[str, list[str], str]]) -> None:
    texts = [(name + "".join(tail), text.encode("utf-8", "replace").decode()) for name, tail, text in parts]
    values, offences = form(*texts)
    assert not values.keys() & {offence.field for offence in offences}
    try:
        creation = creation_of(values, {}, offences)
    except H3Error:
        return
    read_body(creation.delivery.request)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["image_url", "file_id", "x"]), inner),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["prompt", "model", "seconds", "size", "input_reference", "width"]), JSON))
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        creation = creation_of(fields, {}, [])
    except H3Error:
        return
    read_body(creation.delivery.request)
    json.dumps([offence.message for offence in creation.delivery.offences])

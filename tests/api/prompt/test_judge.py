"""What makes a prompt object illegal: by itself, and against task, inputs and length."""

from typing import Any

import pytest
from pydantic import ValidationError

from h3runtime.api.prompt import PromptBody, PromptContext, assemble, examples, judge
from h3runtime.core import Task

T2VA = PromptContext(Task.T2VA, 124 / 24)
I2VA = PromptContext(Task.I2VA, 124 / 24, pictures=1, first_shown=True)
REF2VA = PromptContext(Task.REF2VA, 124 / 24, pictures=2, videos=1, sounds=1)
SUBJECT = {"label": "<Subject 1>", "description": "a cat in <Picture 1>"}


def fields_of(context: PromptContext, **given: Any) -> list[str]:
    prompt = PromptBody.model_validate({"shots": [{"description": "A cat."}]} | given)
    return [offence.field for offence in judge(prompt, context)]


def shots(*times: float | None) -> list[dict[str, Any]]:
    return [{"description": "A cat."} | ({} if at is None else {"at": at}) for at in times]


@pytest.mark.parametrize(
    "given,where",
    [
        ({"shots": []}, ("shots",)),
        ({"shots": "A cat."}, ("shots",)),
        ({}, ("shots",)),
        ({"shots": [{"description": " "}]}, ("shots", 0, "description")),
        ({"shots": [{"description": "x" * 7001}]}, ("shots", 0, "description")),
        ({"shots": [{"description": "x", "at": -1}]}, ("shots", 0, "at")),
        ({"shots": [{"description": "x", "at": float("inf")}]}, ("shots", 0, "at")),
        ({"shots": [{"description": "x", "at": None}]}, ("shots", 0, "at")),
        ({"shots": [{"description": "x", "at": "1"}]}, ("shots", 0, "at")),
        ({"shots": [{"description": "x", "camera": "y"}]}, ("shots", 0, "camera")),
        ({"shots": [{"description": "x", "dialogue": [{"speaker": "S1"}]}]}, ("shots", 0, "dialogue", 0, "line")),
        ({"style": ""}, ("style",)),
        ({"music": None}, ("music",)),
        ({"mood": "x"}, ("mood",)),
        ({"dialogue": "spoken"}, ("dialogue",)),
        ({"task_types": ["video edit"]}, ("task_types", 0)),
        ({"task_types": ["audio reuse", "audio reuse"]}, ("task_types",)),
        ({"subjects": [{"label": "Subject 1", "description": "x"}]}, ("subjects", 0, "label")),
        ({"retention": [{"label": "<Audio 0>", "marker": "reference"}]}, ("retention", 0, "label")),
        ({"retention": [{"label": "<Audio 1>", "marker": "kept"}]}, ("retention", 0, "marker")),
        ({"retention": [{"label": "<Audio 1>", "marker": "reference", "shots": [1, 1]}]}, ("retention", 0, "shots")),
        ({"retention": [{"label": "<Audio 1>", "marker": "reference", "shots": [0]}]}, ("retention", 0, "shots", 0)),
    ],
)
def test_fields_that_are_wrong_by_themselves(given: dict[str, Any], where: tuple[str | int, ...]) -> None:
    base = {"shots": [{"description": "A cat."}]} if given else {}
    with pytest.raises(ValidationError) as caught:
        PromptBody.model_validate(base | given)
    assert [error["loc"] for error in caught.value.errors()] == [where]


def test_messages_take_the_templates_of_the_request() -> None:
    """The request fills `{value}` and the like into a message, which must not hold other braces."""
    wrong = {"shots": [{"description": ""}], "subjects": [{"label": "{x}", "description": "y"}], "task_types": 3}
    with pytest.raises(ValidationError) as caught:
        PromptBody.model_validate(wrong)
    assert all("{" not in str(error["msg"]).replace("{x}", "") for error in caught.value.errors())


@pytest.mark.parametrize("example", [examples.BASE, examples.REF2VA])
def test_the_schema_holds_examples_that_validate(example: dict[str, Any]) -> None:
    assert example in PromptBody.model_json_schema()["examples"]
    PromptBody.model_validate(example)


@pytest.mark.parametrize(
    "times,wrong",
    [
        ((None, 2.0, 4.5), []),
        ((0.0, 5.166), []),
        ((1.0, 2.0), ["prompt.shots[0].at"]),
        ((None, None), ["prompt.shots[1].at"]),
        ((None, 0.0), ["prompt.shots[1].at"]),
        ((None, 3.0, 2.0, 4.0), ["prompt.shots[2].at"]),
        ((None, 3.0, 3.0), ["prompt.shots[2].at"]),
        ((None, 3.0001, 3.0004), ["prompt.shots[2].at"]),
        ((None, 5.17, 9.0), ["prompt.shots[1].at", "prompt.shots[2].at"]),
        ((None, 1e308), ["prompt.shots[1].at"]),
        ((1e308, 2.0), ["prompt.shots[0].at", "prompt.shots[1].at"]),
    ],
)
def test_times_of_shots(times: tuple[float | None, ...], wrong: list[str]) -> None:
    assert fields_of(T2VA, shots=shots(*times)) == wrong


def test_a_label_without_its_input_names_the_field_and_the_legal_ones() -> None:
    prompt = PromptBody.model_validate({"shots": [{"description": "A cat as in <Picture 3>, <Video 1>."}]})
    (offence,) = judge(prompt, REF2VA)
    assert offence.field == "prompt.shots[0].description"
    assert "<Picture 3>" in offence.message
    assert offence.legal == "<Picture 1>, <Picture 2>, <Video 1>, <Audio 1>"
    (offence, _) = judge(prompt, T2VA)
    assert offence.legal.startswith("no label")


@pytest.mark.parametrize(
    "given,wrong",
    [
        ({"style": "As in <Audio 2>"}, ["prompt.style"]),
        ({"soundscape": "<Picture 0>"}, ["prompt.soundscape"]),
        ({"music": "<Picture 01>"}, ["prompt.music"]),
        ({"summary": "<Subject 1> runs."}, ["prompt.summary"]),
        ({"summary": "<Subject 1> runs.", "subjects": [SUBJECT]}, []),
        ({"subjects": [SUBJECT | {"description": "<Subject 2> of <Video 2>"}]}, ["prompt.subjects[0].description"] * 2),
        ({"subjects": [{"label": "<Video 2>", "description": "x"}]}, ["prompt.subjects[0].label"]),
        ({"subjects": [SUBJECT, SUBJECT]}, ["prompt.subjects[1].label"]),
        ({"retention": [{"label": "<Subject 1>", "marker": "weak_reference"}]}, ["prompt.retention[0].label"]),
        ({"retention": [{"label": "<Audio 1>", "marker": "weak_reference"}]}, []),
        ({"retention": [{"label": "<Audio 1>", "marker": "fully_preserved"}]}, ["prompt.retention[0].marker"]),
        ({"retention": [{"label": "<Video 1>", "marker": "fully_copy"}]}, ["prompt.retention[0].marker"]),
        ({"retention": [{"label": "<Audio 1>", "marker": "reference"}] * 2}, ["prompt.retention[1].label"]),
        (
            {"retention": [{"label": "<Audio 1>", "marker": "reference", "shots": [2], "note": "[Shot 3]"}]},
            ["prompt.retention[0].shots", "prompt.retention[0].note"],
        ),
        (
            {"shots": [{"description": "x", "dialogue": [{"speaker": "<Subject 2>", "line": "<Audio 9>"}]}]},
            ["prompt.shots[0].dialogue[0].speaker", "prompt.shots[0].dialogue[0].line"],
        ),
        ({"shots": [{"description": "[Shot 1] x"}]}, ["prompt.shots[0].description"]),
        (
            {"shots": [{"description": "x", "dialogue": [{"speaker": "S1", "line": "a</d>b"}]}], "dialogue": "tag"},
            ["prompt.shots[0].dialogue[0].language", "prompt.shots[0].dialogue[0].line"],
        ),
    ],
)
def test_offences_of_ref2va(given: dict[str, Any], wrong: list[str]) -> None:
    assert fields_of(REF2VA, **given) == wrong


def test_base_tasks_refuse_what_their_form_would_drop() -> None:
    assert fields_of(I2VA, summary="x", task_types=["audio reuse"], subjects=[SUBJECT]) == [
        "prompt.summary",
        "prompt.task_types",
        "prompt.subjects",
    ]
    assert fields_of(I2VA, shots=[{"description": "<Picture 1> moves, <Subject 1> too."}]) == [
        "prompt.shots[0].description"
    ]


def test_the_length_counts_after_assembly() -> None:
    fixed = len(assemble(PromptBody.model_validate({"shots": [{"description": "x"}]}), T2VA)) - 1
    assert fields_of(T2VA, shots=[{"description": "x" * (7000 - fixed)}]) == []
    assert fields_of(T2VA, shots=[{"description": "x" * (7001 - fixed)}]) == ["prompt"]

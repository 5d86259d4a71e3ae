"""The prompt object of `POST /generate`: its fields, their types, and the ranges that hold by themselves.

What depends on the task, the inputs or the clip's length is in `judge`. `request` reads it from JSON; `judge`,
`assemble` and `lint` read the result. Texts are kept as they came: nothing is stripped or normalised here.
The field list is service-contract "prompt as an object"; the vocabularies are conditioning contract §7.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from h3runtime.api.prompt import examples
from h3runtime.api.strict import Strict, refusal, shown

MAX_PROMPT = 7000
"""Characters of the text that the model reads, assembled or given (service-contract, `prompt`)."""
PROMPT_LEGAL = f"1..{MAX_PROMPT} characters, not only white space"
MAX_NAME = 200
MAX_SHOTS = 64
MAX_LINES = 32
"""Spoken lines of one shot."""
MAX_LABELS = 64
"""Subjects, and lines of retention: more don't fit into MAX_PROMPT with anything to say about them."""
LABEL = r"^<(Subject|Picture|Video|Audio) [1-9][0-9]{0,2}>$"

TaskType = Literal[
    "keyframe completion",
    "reference generation",
    "video editing",
    "video continuation",
    "audio reuse",
    "audio reference",
]
VisualMarker = Literal["fully_preserved", "partially_preserved", "attribute_transfer", "weak_reference"]
AudioMarker = Literal["fully_copy", "partially_copy", "reference", "weak_reference"]
Marker = Literal[
    "fully_preserved",
    "partially_preserved",
    "attribute_transfer",
    "weak_reference",
    "fully_copy",
    "partially_copy",
    "reference",
]
"""Either: an error about a union would name both."""


def why_no_prompt(text: str) -> str | None:
    """What is wrong with a text that the model is to read, or a part of it, if anything."""
    if not text.strip():
        return "is empty or only white space"
    return f"has {len(text)} characters" if len(text) > MAX_PROMPT else None


def _text(text: str) -> str:
    if (why := why_no_prompt(text)) is not None:
        raise refusal(why, PROMPT_LEGAL)
    return text


def _name(text: str) -> str:
    bracketed = any(bracket in text for bracket in "[]")
    if not text.strip() or not text.isprintable() or len(text) > MAX_NAME or bracketed:
        legal = f"1..{MAX_NAME} characters of one line, not only white space, without square brackets"
        raise refusal(f"{shown(text)} is no name", legal)
    return text


def _label(text: str) -> str:
    if not re.fullmatch(LABEL, text):
        raise refusal(f"{shown(text)} is no label", "<Subject 1>, <Picture 1>, <Video 1>, <Audio 1>, ...")
    return text


def _given(value: Any) -> Any:
    if value is None:
        raise refusal("null is not a value here", "a value, or leave the field out")
    return value


def _list_of(least: int, most: int) -> Callable[[Any], Any]:
    """Judges that a value is a list of so many; strict validation takes no JSON list for a tuple."""

    def judged(value: Any) -> Any:
        legal = f"a list of {least}..{most}"
        if not isinstance(value, list | tuple):
            raise refusal("is not a list", legal)
        if not least <= len(value) <= most:
            raise refusal(f"has {len(value)} items", legal)
        return tuple(value)

    return judged


def _unlike(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise refusal("names one twice", "each at most once")
    return values


Text = Annotated[str, AfterValidator(_text), Field(json_schema_extra={"minLength": 1, "maxLength": MAX_PROMPT})]
Name = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME})]
Label = Annotated[str, AfterValidator(_label), Field(json_schema_extra={"pattern": LABEL})]
Given = BeforeValidator(_given)


class SubjectBody(Strict):
    """One line of `subject_definitions`."""

    label: Label = Field(description="`<Subject 1>`, or an input itself: `<Picture 1>`, `<Video 1>`, `<Audio 1>`.")
    description: Text = Field(description="What it is, and which input shows it.")


class RetentionBody(Strict):
    """One line of `retention_analysis`: how much of a label the target keeps."""

    label: Label = Field(description="A label that `subjects` defines, or an input.")
    shots: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_SHOTS)], ...],
        BeforeValidator(_list_of(0, MAX_SHOTS)),
        AfterValidator(_unlike),
    ] = Field((), description="Numbers of the shots it appears in, from 1.")
    marker: Marker = Field(
        description="Of what is seen: fully_preserved, partially_preserved, attribute_transfer, weak_reference. "
        "Of `<Audio N>`: fully_copy, partially_copy, reference, weak_reference."
    )
    note: Annotated[Text | None, Given] = Field(None, description="What exactly is kept.")


class DialogueBody(Strict):
    """One spoken line. The words are never changed or translated."""

    speaker: Name = Field(
        description="Who speaks: `(S1)`, `S1`, `the baker`, `the baker (S1)`, `<Subject 1>`, `both (S1,S2)`. A name "
        "without a number gets the next free one, the same in every shot."
    )
    language: Annotated[Name | None, Given] = Field(
        None, description="Such as `English`. Needed where the prompt's `dialogue` is `tag`."
    )
    line: Text = Field(description="The exact words, without quotes or tags around them.")
    off_screen: bool = Field(False, description="A voiceover: nobody's lips move.")


class ShotBody(Strict):
    """One shot."""

    description: Text = Field(
        description="What is seen and heard. From the second shot on it continues `the camera cuts to`, unless it "
        "names a transition itself (`the shot transitions to ...`)."
    )
    at: Annotated[float | None, Given] = Field(
        None, ge=0, description="Seconds at which it begins. Needed from the second shot on; the first begins at 0."
    )
    dialogue: Annotated[tuple[DialogueBody, ...], BeforeValidator(_list_of(0, MAX_LINES))] = ()


class PromptBody(Strict):
    """A prompt by its parts, put into the text form that H3 was trained on; the job shows the text."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.BASE, examples.REF2VA]})

    style: Annotated[Text | None, Given] = Field(
        None, description="Medium, look, composition; said ahead of the first shot."
    )
    summary: Annotated[Text | None, Given] = Field(None, description="Ref2VA only.")
    task_types: Annotated[
        tuple[TaskType, ...], BeforeValidator(_list_of(0, len(TaskType.__args__))), AfterValidator(_unlike)
    ] = Field((), description="Ref2VA only: what is done with the references.")
    subjects: Annotated[tuple[SubjectBody, ...], BeforeValidator(_list_of(0, MAX_LABELS))] = Field(
        (), description="Ref2VA only."
    )
    retention: Annotated[tuple[RetentionBody, ...], BeforeValidator(_list_of(0, MAX_LABELS))] = Field(
        (), description="Ref2VA only."
    )
    shots: Annotated[tuple[ShotBody, ...], BeforeValidator(_list_of(1, MAX_SHOTS))]
    soundscape: Annotated[Text | None, Given] = Field(
        None, description="Ambience and sounds, 1 to 4 sentences; absent: `N/A`."
    )
    music: Annotated[Text | None, Given] = Field(
        None, description="Music that nobody in the picture hears; absent: `N/A`."
    )
    dialogue: Literal["quoted", "tag"] = Field(
        "quoted", description="How lines are written: in double quotes, or as `<d>[Language] ...</d>`."
    )

"""The prompt object of `POST /generate`: its fields, their types, and the ranges that hold by themselves.

What depends on the task, the inputs or the clip's length is in `judge`. `request` reads it from JSON; `judge`,
`assemble` and `lint` read the result. Texts are kept as they came: nothing is stripped or normalised here.
The field list is service-contract "prompt as an object"; the vocabularies are conditioning contract §7.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_PROMPT = 7000
"""Characters of the text that the model reads, assembled or given (service-contract, `prompt`)."""
MAX_SHOTS = 64
MAX_LINES = 32
"""Spoken lines of one shot."""
MAX_LABELS = 64
"""Subjects, and lines of retention: more don't fit into MAX_PROMPT with anything to say about them."""

TaskType = Literal[
    "keyframe completion",
    "reference generation",
    "video editing",
    "video continuation",
    "audio reuse",
    "audio reference",
]
Marker = Literal[
    "fully_preserved",
    "partially_preserved",
    "attribute_transfer",
    "weak_reference",
    "fully_copy",
    "partially_copy",
    "reference",
]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise _refused("is empty or only white space", f"1..{MAX_PROMPT} characters, not only white space")
    return text


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip() or any(bracket in text for bracket in "[]"):
        raise _refused(f"{ascii(text)[:60]} is no name", "1..200 characters of one line, without square brackets")
    return text


def _refused(message: str, legal: str) -> PydanticCustomError:
    # Braces in the message itself would be read as a template.
    return PydanticCustomError("prompt", "{text}", {"text": message, "legal": legal})


def _listed(value: Any) -> Any:
    """JSON has no tuples, and strict validation takes no list for one."""
    return tuple(value) if isinstance(value, list) else value


Text = Annotated[str, Field(max_length=MAX_PROMPT), AfterValidator(_not_blank)]
Name = Annotated[str, Field(max_length=200), AfterValidator(_one_line)]
Label = Annotated[str, Field(max_length=40, pattern=r"^<(Subject|Picture|Video|Audio) [1-9][0-9]{0,2}>$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class SubjectBody(_Strict):
    """One line of `subject_definitions`."""

    label: Label = Field(description="`<Subject 1>`, or the input itself: `<Picture 1>`, `<Video 1>`, `<Audio 1>`.")
    description: Text = Field(description="What it is and which input shows it.")


class RetentionBody(_Strict):
    """One line of `retention_analysis`: how much of a label the target keeps."""

    label: Label = Field(description="A label that `subjects` defines, or an input.")
    shots: Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_SHOTS)], ...], BeforeValidator(_listed)] = Field(
        (), max_length=MAX_SHOTS, description="Numbers of the shots it appears in, from 1."
    )
    marker: Marker = Field(
        description="Of what is seen: fully_preserved, partially_preserved, attribute_transfer, weak_reference. "
        "Of `<Audio N>`: fully_copy, partially_copy, reference, weak_reference."
    )
    note: Text | None = Field(None, description="What exactly is kept.")


class DialogueBody(_Strict):
    """One spoken line. The words are never changed or translated."""

    speaker: Name = Field(
        description="Who speaks: `(S1)`, `S1`, `the baker`, `the baker (S1)`, `<Subject 1>`, `both (S1,S2)`. A name "
        "without a number gets the next free one, and the same in every shot."
    )
    language: Name | None = Field(None, description="Such as `English`. Needed where `dialogue` is `tag`.")
    line: Text = Field(description="The exact words.")
    off_screen: bool = Field(False, description="A voiceover: nobody's lips move.")


class ShotBody(_Strict):
    """One shot."""

    description: Text = Field(
        description="What is seen and heard. In a later shot it continues `the camera cuts to`, unless it begins with "
        "`the camera` or `the shot` itself."
    )
    at: float | None = Field(None, ge=0, description="Seconds at which it begins. Needed from the second shot on.")
    dialogue: Annotated[tuple[DialogueBody, ...], BeforeValidator(_listed)] = Field((), max_length=MAX_LINES)


class PromptBody(_Strict):
    """A prompt by its parts, put into the text form that H3 was trained on; the job shows the text."""

    style: Text | None = Field(None, description="Medium, look and composition; said ahead of the first shot.")
    summary: Text | None = Field(None, description="Ref2VA only.")
    task_types: Annotated[tuple[TaskType, ...], BeforeValidator(_listed)] = Field(
        (), max_length=6, description="Ref2VA only: what is done with the references."
    )
    subjects: Annotated[tuple[SubjectBody, ...], BeforeValidator(_listed)] = Field(
        (), max_length=MAX_LABELS, description="Ref2VA only."
    )
    retention: Annotated[tuple[RetentionBody, ...], BeforeValidator(_listed)] = Field(
        (), max_length=MAX_LABELS, description="Ref2VA only."
    )
    shots: Annotated[tuple[ShotBody, ...], BeforeValidator(_listed)] = Field(min_length=1, max_length=MAX_SHOTS)
    soundscape: Text | None = Field(None, description="Ambience and sounds, 1 to 4 sentences; absent: `N/A`.")
    music: Text | None = Field(None, description="Music that nobody in the picture hears; absent: `N/A`.")
    dialogue: Literal["quoted", "tag"] = Field(
        "quoted", description="How lines are written: in double quotes, or as `<d>[Language] ...</d>`."
    )

"""The text of structured prompts: every form written out, and what assembly never does to a text."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.api.prompt import (
    PromptBody,
    PromptContext,
    assemble,
    clock,
    context_of,
    examples,
    judge,
    lint,
    settle,
    speech,
)
from h3runtime.core import ClipInput, GuideInput, MediaFile, ReferenceInput, SoundInput, Task

SECONDS = 124 / 24
T2VA = PromptContext(Task.T2VA, SECONDS)
I2VA = PromptContext(Task.I2VA, SECONDS, pictures=1, first_shown=True)
L2VA = PromptContext(Task.L2VA, SECONDS, pictures=1, last_shown=True)
FL2VA = PromptContext(Task.FL2VA, SECONDS, pictures=2, first_shown=True, last_shown=True)
REF2VA = PromptContext(Task.REF2VA, SECONDS, pictures=1, videos=1, sounds=2, soundtracks=frozenset({1}))

BASE_TEXT = """\
integrated_multimodal_description: [Shot 1] Live-action, cinematic, a medium shot in warm morning light. A baker (S1) \
lifts a loaf out of a stone oven. The camera pushes in at slow speed. [Shot 2] At 00:02.500, the camera cuts to a \
close-up of the loaf as the crust cracks. The baker (S1) says in English: "Listen to that."

overall_soundscape: The fire hums, and the crust crackles softly.

non_diegetic_music: A slow acoustic guitar."""

FIRST_LINES = [
    (T2VA, ""),
    (
        I2VA,
        "For the target video, at 0.00 seconds into the target video, <Picture 1> (from [Shot 1]) is fully "
        "referenced.\n\n",
    ),
    (
        FL2VA,
        "How the reference pictures align with the target video — Picture 1 (from Shot 1) aligns with the 0.00-second "
        "mark of the target video; Picture 2 (from Shot 2) aligns with the 5.17-second mark of the target video.\n\n",
    ),
    (
        L2VA,
        "How the reference pictures align with the target video — <Picture 1> (from [Shot 2]) aligns with the "
        "5.17-second mark of the target video.\n\n",
    ),
]


def body(**fields: Any) -> PromptBody:
    return PromptBody.model_validate({"shots": [{"description": "A cat."}]} | fields)


@pytest.mark.parametrize("context,first_line", FIRST_LINES, ids=lambda value: getattr(value, "task", None))
def test_base_forms(context: PromptContext, first_line: str) -> None:
    prompt = PromptBody.model_validate(examples.BASE)
    assert judge(prompt, context) == []
    assert assemble(prompt, context) == first_line + BASE_TEXT
    assert lint(prompt, context) == []


def test_ref2va_form() -> None:
    prompt = PromptBody.model_validate(
        {
            "style": "Live-action, cinematic, natural light.",
            "task_types": ["video editing", "audio reference"],
            "summary": "<Subject 1> replaces the man of <Video 1>.",
            "subjects": [
                {"label": "<Subject 1>", "description": "is the baker shown in <Picture 1>."},
                {"label": "<Video 1>", "description": "the source of all movement."},
            ],
            "retention": [
                {"label": "<Subject 1>", "shots": [1, 2], "marker": "fully_preserved", "note": "face and apron."},
                {"label": "<Video 1>", "marker": "partially_preserved"},
                {"label": "<Audio 2>", "marker": "reference", "note": "timbre only."},
            ],
            "shots": [
                {
                    "description": "<Subject 1> looks up",
                    "dialogue": [
                        {"speaker": "<Subject 1>", "language": "English", "line": "Good morning."},
                        {"speaker": "a neighbour", "language": "French", "line": "Bonjour !"},
                    ],
                },
                {
                    "description": "The shot transitions to the street.",
                    "at": 3,
                    "dialogue": [
                        {"speaker": "<Subject 1>", "language": "English", "line": "I still know.", "off_screen": True}
                    ],
                },
            ],
            "soundscape": "A door bell rings once.",
            "dialogue": "tag",
        }
    )
    assert judge(prompt, REF2VA) == []
    assert lint(prompt, REF2VA) == []
    assert (
        assemble(prompt, REF2VA)
        == """\
subject_definitions:
<Subject 1> is the baker shown in <Picture 1>.
<Video 1>: the source of all movement.

summary:
[video editing + audio reference] The target video is an edited version of <Video 1>. <Subject 1> replaces the man of \
<Video 1>.

retention_analysis:
<Subject 1> (appears in [Shot 1], [Shot 2]): fully_preserved - face and apron.
<Video 1>: partially_preserved
<Audio 2>: reference - timbre only.

detailed_description:
Live-action, cinematic, natural light.
[Shot 1] <Subject 1> looks up. <Subject 1> (S1) says: <d>[English] Good morning.</d> a neighbour (S2) says: \
<d>[French] Bonjour !</d>
[Shot 2] At 00:03.000, The shot transitions to the street. <Subject 1> (S1) says in an off-screen voiceover: \
<d>[English] I still know.</d> while on-screen lips stay closed.

overall_soundscape:
A door bell rings once.

non_diegetic_music:
N/A"""
    )


def test_the_ref2va_example_is_legal() -> None:
    prompt = PromptBody.model_validate(examples.REF2VA)
    context = PromptContext(Task.REF2VA, SECONDS, pictures=1, sounds=1)
    assert (judge(prompt, context), lint(prompt, context)) == ([], [])


def test_the_shortest_prompt() -> None:
    assert assemble(body(), T2VA) == (
        "integrated_multimodal_description: [Shot 1] A cat.\n\noverall_soundscape: N/A\n\nnon_diegetic_music: N/A"
    )


def test_a_plain_prompt_stays_as_it_is() -> None:
    text = "  <foo> says: hello \n"
    settled = settle(text, T2VA)
    assert (settled.text, settled.offences, len(settled.warnings)) == (text, (), 2)


def test_an_object_is_settled_at_once() -> None:
    assert settle(body(), T2VA).text == assemble(body(), T2VA)
    refused = settle(body(style="<Picture 1>"), T2VA)
    assert [offence.field for offence in refused.offences] == ["prompt.style"]


def test_guides_that_are_not_shown_have_no_line() -> None:
    picture = MediaFile(Path(__file__), "x")
    first = GuideInput("keyframes[0]", 0, picture=picture)
    last = GuideInput("last_frame", 123, picture=picture, shown=True)
    context = context_of(Task.FL2VA, 124, [first, last])
    assert (context.pictures, context.first_shown, context.last_shown) == (1, False, True)
    assert assemble(body(), context).startswith("How the reference pictures align with the target video — <Picture 1>")
    assert assemble(body(), context_of(Task.I2VA, 124, [first])).startswith("integrated_multimodal_description")


def test_labels_follow_the_presentation() -> None:
    file = MediaFile(Path(__file__), "x")
    clip, sound = ClipInput(file, 0, 56), SoundInput(file)
    references = [
        ReferenceInput("references[0]", "audio", sound=sound),
        ReferenceInput("references[1]", "video", clip=clip, sound=sound),
        ReferenceInput("references[2]", "image", picture=file),
        ReferenceInput("references[3]", "video", clip=clip),
    ]
    context = context_of(Task.REF2VA, 124, [GuideInput("first_frame", 0, picture=file)], references)
    assert context.labels == ("<Picture 1>", "<Video 1>", "<Video 2>", "<Audio 1>", "<Audio 2>")
    assert context.soundtracks == {2}


@pytest.mark.parametrize(
    "line,written",
    [
        ("Stop!", '"Stop!"'),
        ('He said "no".', '“He said "no".”'),
        ('"Stop!"', '"Stop!"'),
        ('"Yes" and "no"', '“"Yes" and "no"”'),
        ("“Ja” und “nein”", '"“Ja” und “nein”"'),
        ('“a" and "b”', '“a" and "b”'),
        ('"', '“"”'),
        ('""', '“""”'),
    ],
)
def test_quotes_inside_a_line(line: str, written: str) -> None:
    assert speech.quoted(line) == written


@pytest.mark.parametrize(
    "speakers,written",
    [
        (["S1", "(S2)", "S1,S2"], ["(S1)", "(S2)", "(S1,S2)"]),
        (["the baker", "a boy", "The baker"], ["the baker (S1)", "a boy (S2)", "The baker (S1)"]),
        (["a boy", "the baker (S1)"], ["a boy (S2)", "the baker (S1)"]),
        (["the baker", "the baker (S3)", "a boy"], ["the baker (S3)", "the baker (S3)", "a boy (S1)"]),
        (["<Subject 1>", "<Subject 2> (S1)"], ["<Subject 1> (S2)", "<Subject 2> (S1)"]),
        (["both children (S1, S2)", "a boy"], ["both children (S1, S2)", "a boy (S3)"]),
        (["a man on the S5 train"], ["a man on the S5 train (S1)"]),
    ],
)
def test_speakers_keep_their_number(speakers: list[str], written: list[str]) -> None:
    assert speech.numbered(speakers) == written


@given(st.lists(st.sampled_from(["ann", "bob", "Ann", "cy (S2)", "S1", "bob (S4)"]), max_size=9))
def test_one_name_has_one_number(speakers: list[str]) -> None:
    numbers: dict[str, set[str]] = {}
    for speaker, written in zip(speakers, speech.numbered(speakers), strict=True):
        numbers.setdefault(re.sub(r" ?\(.*", "", speaker).casefold(), set()).add(written[-3:-1])
    assert all(len(found) == 1 for found in numbers.values())


@given(st.integers(0, 599_999))
def test_times_are_minutes_seconds_milliseconds(milliseconds: int) -> None:
    written = clock.written(milliseconds / 1000)
    minutes, seconds, rest = re.fullmatch(r"(\d\d):([0-5]\d)\.(\d{3})", written).groups()  # type: ignore[union-attr]
    assert int(minutes) * 60_000 + int(seconds) * 1000 + int(rest) == milliseconds


WORDS = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
LINES = st.fixed_dictionaries(
    {
        "speaker": st.sampled_from(["S1", "the baker", "<Subject 1>"]),
        "language": st.sampled_from(["English", "Korean"]),
        "line": WORDS,
        "off_screen": st.booleans(),
    }
)
SHOTS = st.lists(st.fixed_dictionaries({"description": WORDS, "dialogue": st.lists(LINES, max_size=2)}), min_size=1)
FIELDS = st.fixed_dictionaries(
    {"shots": SHOTS, "dialogue": st.sampled_from(["quoted", "tag"])},
    optional={"style": WORDS, "summary": WORDS, "soundscape": WORDS, "music": WORDS},
)


@given(FIELDS, st.sampled_from([T2VA, FL2VA, REF2VA]))
def test_assembly_loses_nothing(fields: dict[str, Any], context: PromptContext) -> None:
    shots = [shot | ({"at": float(index)} if index else {}) for index, shot in enumerate(fields["shots"])]
    fields = {k: v for k, v in fields.items() if k != "summary" or context is REF2VA} | {"shots": shots}
    prompt = PromptBody.model_validate(fields)
    text = assemble(prompt, context)
    given_texts = [fields[name] for name in ("style", "summary", "soundscape", "music") if name in fields]
    assert all(part.strip() in text for part in [*given_texts, *(shot["description"] for shot in shots)])
    for line in (line for shot in shots for line in shot["dialogue"]):
        tagged = f"<d>[{line['language']}] {line['line']}</d>"
        assert (tagged if fields["dialogue"] == "tag" else speech.quoted(line["line"])) in text
        assert line["line"] in text
    assert text == assemble(PromptBody.model_validate(fields), context)

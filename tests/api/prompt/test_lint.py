"""Warnings about prompts: what deserves one, and the ordinary prose that must stay free of them."""

import time

import pytest

from h3runtime.api.prompt import PromptBody, PromptContext, lint
from h3runtime.core import Task

T2VA = PromptContext(Task.T2VA, 124 / 24)
FL2VA = PromptContext(Task.FL2VA, 124 / 24, pictures=2, first_shown=True, last_shown=True)
REF2VA = PromptContext(Task.REF2VA, 124 / 24, pictures=2, videos=1, sounds=2, soundtracks=frozenset({1}))

CLEAN = [
    "A cat walks along a wall at dusk, camera tracking slowly from the left.",
    "Ein Bäcker sagt nichts, sieht nur aus dem Fenster: draußen fällt Schnee.",
    "Une femme marche sous la pluie ; elle dit « Bonjour ! » au facteur, puis sourit.",
    "Un hombre dice: «Hola, ¿qué tal?» y se va. Después, silencio: solo el viento.",
    "Мужчина говорит: «Привет» и уходит. На столе: чашка, книга, лампа.",
    "一位老人坐在河边。他说：“今天天气真好。”然后微笑。街道：雨夜，霓虹灯。",
    "老人は「こんにちは」と言う。背景：夕焼けの海。",
    '여자가 말한다: "안녕하세요." 그리고 웃는다.',
    "يقول الرجل: «مرحبا» ثم يبتسم.",
    'Um menino diz: "Olá!" e corre. La donna dice: “Ciao”.',
    'The woman (S1) says in a low, tired voice in English: "I get off here." The clock says 10:30.',
    "She says, smiling, \"hello there\". He replies: 'not today'.",
    "He whispers something in her ear, then says goodbye to nobody and says no more.",
    '"Good morning!" says the baker: everyone laughs. “Oh,” she whispers: the cat sleeps.',
    "A sign says OPEN. She asks whether it is late (about 19:30), in 16:9, ratio 2.39:1.",
    "The narrator (S1) says in an off-screen voiceover: <d>[English] Once upon a time.</d> while lips stay closed.",
    "[Shot 1] Live-action. [Shot 2] At 00:02.500, the camera cuts to a door. [Shot 3] At 00:04.000, the shot ends.",
    "1 < 2 > 0, a <- b, x <3 y; 5\" nails and 6' boards; f(x) = 2:1",
    "She asks whether anyone is there: only the wind answers. He turns to the crowd: nobody looks.",
    "integrated_multimodal_description: [Shot 1] She says nothing\noverall_soundscape: wind\nnon_diegetic_music: N/A",
    "Voiceover: none. Dialogue: none. Music: piano.",
    "A robot named <|cutoff|> walks; the speech ends <cutoff> and goes on <scenetrans>.",
]


@pytest.mark.parametrize("text", CLEAN)
def test_ordinary_prose_is_clean(text: str) -> None:
    assert lint(text, T2VA) == []


@pytest.mark.parametrize(
    "text,told",
    [
        ("a man says: hello my friend", '"says"'),
        ("a man says hello to us and leaves", '"says"'),
        ("She whispers, I love you.", '"whispers"'),
        ("A guard shouts we are closed", '"shouts"'),
        ("A man waves, saying hi to us.", '"saying"'),
        ("The woman (S1) says in English: Good morning, everyone.", '"says"'),
        ("Der Mann sagt: Guten Morgen.", '"sagt"'),
        ("Elle dit : bonjour tout le monde.", '"dit"'),
        ("El niño grita: vamos a casa", '"grita"'),
        ("Он говорит: привет всем", '"говорит"'),
        ("他说：你好，朋友。", '"说"'),
        ("彼は言う：こんにちは", '"言う"'),
        ("Voiceover: Welcome to our bakery.", '"Voiceover"'),
        ("(S1) says: <d>[English] Hello.", "never closed"),
        ("<d>[English] Hello. <d>[English] Hi.</d>", "not closed before"),
        ("Hello.</d>", "closes nothing"),
        ("<d>Hello.</d>", "without a language"),
        ("<d>[Klingon] nuqneH</d>", "Klingon is not among the languages"),
        ("<|cutof|> and on", "<|cutof|> is no tag that H3 knows and is read as text"),
        ("<dialogue>", "<dialogue> is no tag"),
        ("<picture1> shows", "write <Picture 1>"),
        ("<Picture 1> shows", "<Picture 1> has no input"),
        ("<Subject 1> runs", "means nothing without references"),
        ("[Shot 1] a. [Shot 2] At 00:09.000, the camera cuts to b.", "beyond the clip, which lasts 5.167 s"),
        ("[Shot 1] a. [Shot 2] at 6 seconds, b.", "beyond the clip"),
        ("[Shot 1] a. [Shot 2] At 00:03.000, b. [Shot 3] At 00:03.000, c.", "not after the shot before"),
        ("a (beautiful:1.2) cat", "weights"),
        ("a cat \\(black\\)", "backslash"),
        ("embedding:easynegative a cat", "embedding"),
        ("<lora:fast:0.8> a cat", "loras"),
        ("a cat. Negative prompt: dogs", "no negative prompt"),
        ("a cat --no dogs", "flags"),
    ],
)
def test_what_gets_a_warning(text: str, told: str) -> None:
    warnings = lint(text, T2VA)
    assert any(told in warning for warning in warnings), warnings
    assert all(warning.startswith("prompt: ") for warning in warnings)


def test_references_that_are_never_mentioned() -> None:
    assert lint("<Picture 2> and Video 1 meet in the voice of <Audio 2>.", REF2VA) == [
        "prompt: <Picture 1> is among the references and never mentioned"
    ]
    # The first sound is the clip's own track; frames of base tasks are conditions by their place.
    assert lint("A dance of <Picture 1>, <Picture 2>, <Video 1>, <Audio 2>.", REF2VA) == []
    assert lint("A cat wakes up.", FL2VA) == []
    assert len(lint("A cat wakes up.", REF2VA)) == 1


def test_subjects_of_a_plain_prompt() -> None:
    text = (
        "subject_definitions:\n<Subject 1> is the man of <Picture 1>, <Picture 2>, <Video 1>, <Audio 2>.\n\n"
        "summary:\n<Subject 1> meets <Subject 2>."
    )
    assert lint(text, REF2VA) == ["prompt: <Subject 2> is not among subject_definitions"]


def test_the_mark_of_a_frame_beyond_the_clip() -> None:
    line = "<Picture 1> (from [Shot 1]) aligns with the {}-second mark of the target video."
    assert lint(line.format("5.17"), FL2VA) == []
    assert lint(line.format("8.00"), FL2VA) == ["prompt: the 8.00-second mark is beyond the clip, which lasts 5.17 s"]


def test_objects_are_read_by_their_text_and_by_their_fields() -> None:
    prompt = PromptBody.model_validate(
        {
            "task_types": ["video editing", "audio reuse"],
            "shots": [
                {
                    "description": "<foo> <Picture 1> <Picture 2>",
                    "dialogue": [{"speaker": "S1", "language": "Dutch", "line": "Hoi"}],
                }
            ],
        }
    )
    context = PromptContext(Task.REF2VA, 5.0, pictures=2)
    told = lint(prompt, context)
    assert [next(word for word in ("foo", "Dutch", "editing", "reuse", "leaves out") if word in w) for w in told] == [
        "foo",
        "Dutch",
        "editing",
        "reuse",
        "leaves out",
    ]


@pytest.mark.parametrize("unit", ["“", '"', "<d>", "(a:", "says ", "[Shot 1] at 1", "<", "'", "\\(", "«", "说"])
def test_long_prompts_take_no_time(unit: str) -> None:
    started = time.process_time()
    lint((unit * 7000)[:7000], T2VA)
    assert time.process_time() - started < 1

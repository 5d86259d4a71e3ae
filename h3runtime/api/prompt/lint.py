"""What is odd about a prompt: warnings, never edits. The one place that warns about prompts.

Reads a plain string as its author typed it, or an object by its assembled text, and knows the inputs. A warning is
given where the author can hardly have meant what the model will read; ordinary prose in any language gives none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from h3runtime.api.prompt import clock
from h3runtime.api.prompt.assemble import assemble
from h3runtime.api.prompt.body import PromptBody, TaskType
from h3runtime.api.prompt.context import PromptContext
from h3runtime.api.prompt.labels import LABEL, meant_label, unknown_tags
from h3runtime.api.prompt.sayings import unmarked_speech
from h3runtime.core import Task

LANGUAGES: Final = (
    "Arabic",
    "Chinese",
    "English",
    "French",
    "German",
    "Italian",
    "Japanese",
    "Korean",
    "Portuguese",
    "Russian",
    "Spanish",
)
"""Those whose speech is stable (conditioning contract §7.2)."""
_SPEECH_TAG: Final = re.compile(r"</?d>")
_LANGUAGE: Final = re.compile(r"<d>\s*\[([^\]\n]{1,200})\]")
_SHOT_TIME: Final = re.compile(
    r"\[Shot [0-9]{1,9}\],? at (?:([0-9]{1,3}):([0-9]{2}(?:\.[0-9]{1,6})?)|([0-9]{1,6}(?:\.[0-9]{1,6})?) ?s)",
    re.IGNORECASE,
)
_FRAME_TIME: Final = re.compile(r"aligns with the ([0-9]{1,6}\.[0-9]{1,6})-second mark")
_HABITS: Final = (
    (re.compile(r"\([^()\n]{0,200}[^\W\d_]\s?:\s?[0-9]\.[0-9]{1,3}\)"), "weights don't exist here"),
    (re.compile(r"<lora:[^>\n]{1,200}>", re.IGNORECASE), "loras are a field of the request"),
    (re.compile(r"(?<!\S)embedding:[^\s,]{1,200}"), "embeddings don't exist here"),
    (re.compile(r"\\[()]"), "the backslash needs no escape and stays"),
    (re.compile(r"\bnegative[ _]prompt\s?:", re.IGNORECASE), "H3 has no negative prompt and reads what follows"),
    (re.compile(r"(?<!\S)--(?:no|neg|ar|seed|stylize|fps|duration)\b"), "flags don't exist here"),
)
"""Syntax of other tools, which H3 reads as text (conditioning contract §1.4, §1.6)."""
_NEEDS: Final[dict[TaskType, Callable[[PromptContext], int]]] = {
    "video editing": lambda context: context.videos,
    "video continuation": lambda context: context.videos,
    "audio reuse": lambda context: context.sounds,
    "audio reference": lambda context: context.sounds,
}


def lint(prompt: str | PromptBody, context: PromptContext) -> list[str]:
    """Warnings about a plain string, or about an object that `judge` accepts. Each begins with `prompt: `."""
    text = prompt if isinstance(prompt, str) else assemble(prompt, context)
    found = [
        *_tags(text),
        *_inputs(text, context),
        *_subjects(text, context),
        *_dialogue(text),
        *_times(text, context.seconds),
        *_habits(text),
    ]
    if isinstance(prompt, PromptBody):
        found += _object(prompt, context)
    return [f"prompt: {warning}" for warning in dict.fromkeys(found)]


def _tags(text: str) -> Iterator[str]:
    for tag in unknown_tags(text):
        meant = meant_label(tag)
        yield f"{tag} is no tag that H3 knows and is read as text" + (f"; write {meant}" if meant else "")


def _inputs(text: str, context: PromptContext) -> Iterator[str]:
    """Labels without their input; references that the prompt never names."""
    legal = ", ".join(context.labels) or "none that a prompt can name"
    for label in dict.fromkeys(LABEL.findall(text)):
        if label not in context.labels and "Subject" not in label:
            yield f"{label} has no input; there is {legal}"
    if context.task != Task.REF2VA:
        return
    tracks = {f"<Audio {number}>" for number in context.soundtracks}
    silent = [label for label in context.labels if label not in tracks and not _mentions(text, label)]
    if silent:
        yield f"{', '.join(silent)} {'is' if len(silent) == 1 else 'are'} among the references and never mentioned"


def _mentions(text: str, label: str) -> bool:
    """With or without its brackets, in any case: near misses get a warning of their own."""
    return re.search(rf"\b{label[1:-1].replace(' ', ' ?')}\b", text, re.IGNORECASE) is not None


def _subjects(text: str, context: PromptContext) -> Iterator[str]:
    """Subjects exist in the prompt only, defined at the beginning of a line (conditioning contract §7.3)."""
    for label in dict.fromkeys(label for label in LABEL.findall(text) if "Subject" in label):
        if context.task != Task.REF2VA:
            yield f"{label} means nothing without references"
        elif "subject_definitions:" in text and not re.search(rf"^\W{{0,8}}{label}", text, re.MULTILINE):
            yield f"{label} is not among subject_definitions"


def _dialogue(text: str) -> Iterator[str]:
    yield from _speech_tags(text)
    if re.search(r"<d>(?!\s*\[)", text):
        yield "<d> without a language: write <d>[English] ...</d>"
    for language in _LANGUAGE.findall(text):
        yield from _language(language)
    for verb in unmarked_speech(text):
        yield f'the words after "{verb}" are neither in double quotes nor in <d>: H3 may not speak them'


def _speech_tags(text: str) -> Iterator[str]:
    depth = 0
    for tag in _SPEECH_TAG.findall(text):
        if tag == "<d>" and depth:
            yield "<d> is not closed before the next one"
        if tag == "</d>" and not depth:
            yield "</d> closes nothing"
        depth = 1 if tag == "<d>" else 0
    if depth:
        yield "<d> is never closed"


def _language(language: str) -> Iterator[str]:
    if not any(known.casefold() in language.casefold() for known in LANGUAGES):
        yield f"{language.strip()} is not among the languages that H3 speaks reliably: {', '.join(LANGUAGES)}"


def _times(text: str, seconds: float) -> Iterator[str]:
    """Times of shots and of frames against the clip, and against each other."""
    before = 0.0
    for match in _SHOT_TIME.finditer(text):
        minutes, rest, plain = match.groups()
        at = float(plain) if plain else int(minutes) * 60 + float(rest)
        if at >= seconds:
            yield f"{match[0]} is beyond the clip, which lasts {seconds:.3f} s"
        elif clock.milliseconds(at) <= clock.milliseconds(before):
            yield f"{match[0]} is not after the shot before it"
        before = at
    for mark in _FRAME_TIME.findall(text):
        if float(mark) > seconds + 0.01:
            yield f"the {mark}-second mark is beyond the clip, which lasts {seconds:.2f} s"


def _habits(text: str) -> Iterator[str]:
    for shape, told in _HABITS:
        for piece in dict.fromkeys(match[0] for match in shape.finditer(text)):
            yield f"{piece} is read as text: {told}"


def _object(prompt: PromptBody, context: PromptContext) -> Iterator[str]:
    """What the object's fields tell beyond their text."""
    for shot in prompt.shots:
        for line in shot.dialogue:
            yield from _language(line.language or LANGUAGES[0])
    if context.task != Task.REF2VA:
        return
    for kind in prompt.task_types:
        if kind in _NEEDS and not _NEEDS[kind](context):
            yield f'task type "{kind}" without {"a video" if "video" in kind else "a sound"} among the references'
    absent = [name for name in ("task_types", "summary", "subjects", "retention") if not getattr(prompt, name)]
    if absent:
        yield f"the form of Ref2VA has {', '.join(absent)}, which this prompt leaves out"

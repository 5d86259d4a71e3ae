"""A prompt object against the task, the inputs and the clip's length: everything that is wrong with it.

`settle` calls it once inputs and length are known; what it lets through can be assembled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, get_args

from h3runtime.api.prompt import clock
from h3runtime.api.prompt.assemble import assemble
from h3runtime.api.prompt.body import MAX_PROMPT, AudioMarker, PromptBody, ShotBody, VisualMarker
from h3runtime.api.prompt.context import PromptContext
from h3runtime.api.prompt.labels import LABEL, SHOT
from h3runtime.core import Task
from h3runtime.errors import Offence

REF2VA_ONLY: Final = ("summary", "task_types", "subjects", "retention")
"""Fields that the base tasks' form has no place for."""


def judge(prompt: PromptBody, context: PromptContext) -> list[Offence]:
    """Every offence; fields are named as in `prompt.shots[1].at`."""
    found = [
        *_foreign_fields(prompt, context),
        *_doubled_labels(prompt),
        *_missing_labels(prompt, context),
        *_markers(prompt),
        *_shot_marks(prompt),
        *_times(prompt.shots, context.seconds),
        *_lines(prompt),
    ]
    return found or _too_long(prompt, context)


def _foreign_fields(prompt: PromptBody, context: PromptContext) -> Iterator[Offence]:
    if context.task == Task.REF2VA:
        return
    for name in REF2VA_ONLY:
        if getattr(prompt, name):
            message = f"has no place in the prompt of a {context.task.value} clip"
            yield Offence(f"prompt.{name}", message, "leave it out, or give references")


def _doubled_labels(prompt: PromptBody) -> Iterator[Offence]:
    seen: set[str] = set()
    for index, subject in enumerate(prompt.subjects):
        if subject.label in seen:
            yield Offence(f"prompt.subjects[{index}].label", f"{subject.label} is defined twice", "each label once")
        seen.add(subject.label)
    kept: set[tuple[str, int]] = set()
    for index, retention in enumerate(prompt.retention):
        places = {(retention.label, shot) for shot in retention.shots or (0,)}
        if places & kept:
            message = f"{retention.label} is judged twice"
            yield Offence(f"prompt.retention[{index}].label", message, "each label once, or once per shot")
        kept |= places


def _missing_labels(prompt: PromptBody, context: PromptContext) -> Iterator[Offence]:
    """Labels that mean nothing: of inputs that aren't there, of subjects that nobody defines."""
    defined = [subject.label for subject in prompt.subjects if context.task == Task.REF2VA]
    legal = [*context.labels, *(label for label in dict.fromkeys(defined) if "Subject" in label)]
    told = ", ".join(legal) or "no label: nothing that the prompt could name is shown"
    for field, text in _labelled(prompt):
        for label in dict.fromkeys(LABEL.findall(text)):
            defines = field.startswith("prompt.subjects") and field.endswith(".label") and "Subject" in label
            if label not in legal and not defines:
                what = "is defined by no subject" if "Subject" in label else "has no input"
                yield Offence(field, f"{label} {what}", told)


def _labelled(prompt: PromptBody) -> Iterator[tuple[str, str]]:
    """Everything that may hold a label, in the order of the fields."""
    yield from _texts({"style": prompt.style, "summary": prompt.summary})
    for index, subject in enumerate(prompt.subjects):
        at = f"subjects[{index}]"
        yield from _texts({f"{at}.label": subject.label, f"{at}.description": subject.description})
    for index, kept in enumerate(prompt.retention):
        yield from _texts({f"retention[{index}].label": kept.label, f"retention[{index}].note": kept.note})
    for index, shot in enumerate(prompt.shots):
        yield from _texts({f"shots[{index}].description": shot.description})
        for number, line in enumerate(shot.dialogue):
            at = f"shots[{index}].dialogue[{number}]"
            yield from _texts({f"{at}.speaker": line.speaker, f"{at}.line": line.line})
    yield from _texts({"soundscape": prompt.soundscape, "music": prompt.music})


def _texts(named: dict[str, str | None]) -> Iterator[tuple[str, str]]:
    for name, text in named.items():
        if text is not None:
            yield f"prompt.{name}", text


def _markers(prompt: PromptBody) -> Iterator[Offence]:
    for index, kept in enumerate(prompt.retention):
        heard = kept.label.startswith("<Audio")
        legal = get_args(AudioMarker if heard else VisualMarker)
        if kept.marker not in legal:
            what = "heard" if heard else "seen"
            message = f"{kept.marker!r} is not said of what is {what}, as {kept.label} is"
            yield Offence(f"prompt.retention[{index}].marker", message, ", ".join(legal))


def _shot_marks(prompt: PromptBody) -> Iterator[Offence]:
    """Shots that are spoken of and don't exist; marks that the assembler writes itself."""
    shots = len(prompt.shots)
    legal = f"1..{shots}"
    for index, kept in enumerate(prompt.retention):
        for number in kept.shots:
            if number > shots:
                yield Offence(f"prompt.retention[{index}].shots", f"there is no shot {number}", legal)
    for field, text in _labelled(prompt):
        if field.endswith(".description") and "shots[" in field and re.match(rf"\s*{SHOT.pattern}", text):
            yield Offence(field, "begins with a shot mark, which is added anyway", "the description alone; use at")
        for number in dict.fromkeys(SHOT.findall(text)):
            if not 1 <= int(number) <= shots:
                yield Offence(field, f"there is no [Shot {number}]", f"[Shot {legal}]")


def _times(shots: tuple[ShotBody, ...], seconds: float) -> Iterator[Offence]:
    if shots[0].at is not None and clock.milliseconds(shots[0].at) > 0:
        yield Offence("prompt.shots[0].at", f"the first shot can't begin at {shots[0].at:g} s", "0, or leave it out")
    for index, (before, shot) in enumerate(pairwise(shots), 1):
        field = f"prompt.shots[{index}].at"
        since = clock.milliseconds(before.at or 0.0)
        legal = f"above {since / 1000:g} and below {seconds:.3f}"
        if shot.at is None:
            yield Offence(field, "is missing: only the first shot begins by itself", legal)
        elif clock.milliseconds(shot.at) >= seconds * 1000:
            yield Offence(field, f"{shot.at:g} s is beyond the clip, which lasts {seconds:.3f} s", legal)
        elif clock.milliseconds(shot.at) <= since:
            yield Offence(field, f"{shot.at:g} s is not after the shot before, at {since / 1000:g} s", legal)


def _lines(prompt: PromptBody) -> Iterator[Offence]:
    for index, shot in enumerate(prompt.shots):
        for number, line in enumerate(shot.dialogue):
            at = f"prompt.shots[{index}].dialogue[{number}]"
            if prompt.dialogue == "tag" and line.language is None:
                yield Offence(f"{at}.language", 'is missing, and dialogue is "tag"', "a language such as English")
            if re.search(r"</?d>", line.line):
                yield Offence(
                    f"{at}.line", "holds <d> or </d>, which dialogue writes", 'the words alone; dialogue: "tag"'
                )


def _too_long(prompt: PromptBody, context: PromptContext) -> list[Offence]:
    length = len(assemble(prompt, context))
    if length <= MAX_PROMPT:
        return []
    return [Offence("prompt", f"has {length} characters after assembly", f"1..{MAX_PROMPT} characters")]

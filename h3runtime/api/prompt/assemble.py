"""A prompt object -> the text that H3 reads, in the form of its task (conditioning contract §7).

    T2VA, I2VA, L2VA, FL2VA    [line about the frames shown], integrated_multimodal_description, overall_soundscape,
                               non_diegetic_music
    Ref2VA                     subject_definitions, summary, retention_analysis, detailed_description,
                               overall_soundscape, non_diegetic_music

Every text comes out as it went in, but for white space around it; what is added is the form: headers, shot marks and
times, a full stop where one text would run into the next. Fed with what `judge` accepts; the text becomes the job's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from h3runtime.api.prompt import clock, speech
from h3runtime.api.prompt.body import PromptBody, RetentionBody, ShotBody, SubjectBody
from h3runtime.api.prompt.context import PromptContext
from h3runtime.core import Task

ABSENT: Final = "N/A"
EDITED: Final = "The target video is an edited version of <Video 1>."
"""How the summary of an edit begins (conditioning contract §7.3)."""
_SETTING_OF_EDIT: Final = EDITED.removesuffix(" <Video 1>.")
_OWN_TRANSITION: Final = re.compile(
    r"the (?:camera|shot|scene|view|screen|frame)\b|(?:(?:hard|smash|match|jump) )?cuts? to\b|(?:cross-)?dissolves?\b"
    r"|fades?\b|wipes?\b|镜头|画面|カメラ",
    re.IGNORECASE,
)
"""How a description begins that says itself how its shot comes in."""


def assemble(prompt: PromptBody, context: PromptContext) -> str:
    """The text of a prompt that `judge` finds nothing wrong with."""
    if context.task == Task.REF2VA:
        return "\n\n".join(f"{header}:\n{text}" for header, text in _ref2va_sections(prompt, context).items())
    sections = {
        "integrated_multimodal_description": " ".join(_shots(prompt, style=_lead(prompt))),
        "overall_soundscape": _or_absent(prompt.soundscape),
        "non_diegetic_music": _or_absent(prompt.music),
    }
    fields = [f"{header}: {text}" for header, text in sections.items()]
    return "\n\n".join([*frames_line(context, len(prompt.shots)), *fields])


def frames_line(context: PromptContext, shots: int) -> list[str]:
    """The instruction line about the pictures shown, if any (conditioning contract §7.1, to the letter).

    It follows the pictures, not the task's name: a guide that is anchored only has no `<Picture i>` to speak of.
    """
    how = "How the reference pictures align with the target video —"
    end = f"{context.seconds:.2f}-second mark of the target video"
    if context.first_shown and context.last_shown:
        first = "Picture 1 (from Shot 1) aligns with the 0.00-second mark of the target video"
        return [f"{how} {first}; Picture 2 (from Shot {shots}) aligns with the {end}."]
    if context.first_shown:
        where = "For the target video, at 0.00 seconds into the target video,"
        return [f"{where} <Picture 1> (from [Shot 1]) is fully referenced."]
    if context.last_shown:
        return [f"{how} <Picture 1> (from [Shot {shots}]) aligns with the {end}."]
    return []


def _ref2va_sections(prompt: PromptBody, context: PromptContext) -> dict[str, str]:
    style = [prompt.style.strip()] if prompt.style else []
    return {
        "subject_definitions": _lines(map(_definition, prompt.subjects)),
        "summary": _summary(prompt, context),
        "retention_analysis": _lines(map(_retention, prompt.retention)),
        "detailed_description": _lines([*style, *_shots(prompt)]),
        "overall_soundscape": _or_absent(prompt.soundscape),
        "non_diegetic_music": _or_absent(prompt.music),
    }


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines) or ABSENT


def _or_absent(text: str | None) -> str:
    return ABSENT if text is None else text.strip()


def _definition(subject: SubjectBody) -> str:
    text = subject.description.strip()
    between = " " if re.match(r"(?:is|are)\b", text, re.IGNORECASE) else ": "
    return f"{subject.label}{between}{text}"


def _retention(kept: RetentionBody) -> str:
    shots = ", ".join(f"[Shot {number}]" for number in kept.shots)
    where = f" (appears in {shots})" if shots else ""
    note = f" - {kept.note.strip()}" if kept.note else ""
    return f"{kept.label}{where}: {kept.marker}{note}"


def _summary(prompt: PromptBody, context: PromptContext) -> str:
    text = prompt.summary.strip() if prompt.summary else ""
    edits = "video editing" in prompt.task_types and context.videos > 0
    parts = [
        f"[{' + '.join(prompt.task_types)}]" if prompt.task_types else "",
        EDITED if edits and not text.startswith(_SETTING_OF_EDIT) else "",
        text,
    ]
    return " ".join(part for part in parts if part) or ABSENT


def _lead(prompt: PromptBody) -> str:
    return f"{_closed(prompt.style)} " if prompt.style else ""


def _shots(prompt: PromptBody, style: str = "") -> list[str]:
    """Each shot with its mark, its time and what is spoken in it. `style` goes into the first."""
    speakers = iter(speech.numbered([line.speaker for shot in prompt.shots for line in shot.dialogue]))
    written = []
    for number, shot in enumerate(prompt.shots, 1):
        spoken = [speech.sentence(line, next(speakers), prompt.dialogue) for line in shot.dialogue]
        last = number == len(prompt.shots) and not spoken
        text = shot.description.strip() if last else _closed(shot.description)
        opening = style if number == 1 else _opening(shot)
        written.append(" ".join([f"[Shot {number}] {opening}{text}", *spoken]))
    return written


def _opening(shot: ShotBody) -> str:
    """When and how a later shot comes in."""
    cut = "" if _OWN_TRANSITION.match(shot.description.strip()) else "the camera cuts to "
    return f"At {clock.written(shot.at or 0.0)}, {cut}"


def _closed(text: str) -> str:
    """A text that another can follow: with a full stop if it ends in a letter, a figure or a bracket."""
    text = text.strip()
    return f"{text}." if text[-1].isalnum() or text[-1] in ")]>" else text

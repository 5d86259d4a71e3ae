"""The prompt as the model reads it: given as a text, or assembled from an object."""

from __future__ import annotations

from h3runtime.api.request import PROMPT_LEGAL, why_no_prompt
from h3runtime.errors import Offence


def judge_prompt_text(text: str) -> list[Offence]:
    """What is wrong with an assembled text. A text that was given has been judged as a field."""
    why = why_no_prompt(text)
    return [] if why is None else [Offence("prompt", f"{why} once it is assembled", PROMPT_LEGAL)]

"""Dialogue as sentences: who speaks, how, and the exact words (conditioning contract §7.2).

Words come out as they went in; speaker, language and delivery stay outside the quotes or the tag. Read by `assemble`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, Literal

from h3runtime.api.prompt.body import DialogueBody

_ONLY_NUMBERS: Final = re.compile(r"\(?(S[0-9]+(?:, ?S[0-9]+)*)\)?")
_NUMBERED: Final = re.compile(r" ?\((S[0-9]+(?:, ?S[0-9]+)*)\)")
_QUOTES: Final = (('"', '"'), ("“", "”"), ("„", "“"))
"""Pairs of double quotes, in the order of preference."""


def numbered(speakers: Sequence[str]) -> list[str]:
    """Every speaker with its `(Sx)`, which stays the same wherever the name comes up again.

    A number that is given stays; a name without one takes the number given to that name elsewhere, else the lowest that
    nobody has, in the order of speaking.
    """
    stripped = [speaker.strip() for speaker in speakers]
    known = {_bare(speaker): numbers for speaker in stripped if (numbers := _numbers(speaker)) and _bare(speaker)}
    taken = {number for speaker in stripped for number in re.findall("S[0-9]+", _numbers(speaker))}
    free = (f"S{number}" for number in count(1) if f"S{number}" not in taken)
    return [_with_number(speaker, known, free) for speaker in stripped]


def _with_number(speaker: str, known: dict[str, str], free: Iterator[str]) -> str:
    if only := _ONLY_NUMBERS.fullmatch(speaker):
        return f"({only[1]})"
    if _NUMBERED.search(speaker):
        return speaker
    bare = _bare(speaker)
    if bare not in known:
        known[bare] = next(free)
    return f"{speaker} ({known[bare]})"


def _numbers(speaker: str) -> str:
    """`S1` or `S1,S2` if the speaker has them, else nothing."""
    found = _ONLY_NUMBERS.fullmatch(speaker) or _NUMBERED.search(speaker)
    return found[1] if found else ""


def _bare(speaker: str) -> str:
    """The name alone, as two spellings of it compare; empty for a number alone."""
    return "" if _ONLY_NUMBERS.fullmatch(speaker) else _NUMBERED.sub("", speaker).casefold()


def sentence(spoken: DialogueBody, speaker: str, form: Literal["quoted", "tag"]) -> str:
    """One line of dialogue. `speaker` as `numbered` writes it."""
    voice = " in an off-screen voiceover" if spoken.off_screen else ""
    closed = " while on-screen lips stay closed." if spoken.off_screen else ""
    if form == "tag":
        return f"{speaker} says{voice}: <d>[{spoken.language}] {spoken.line}</d>{closed}"
    language = f" in {spoken.language}" if spoken.language else ""
    return f"{speaker} says{voice}{language}: {quoted(spoken.line)}{closed}"


def quoted(line: str) -> str:
    """`line` in double quotes that don't occur in it; one that comes in such quotes keeps them."""
    for left, right in _QUOTES:
        inner = line.removeprefix(left).removesuffix(right)
        if len(inner) == len(line) - 2 and inner and left not in inner and right not in inner:
            return line
    left, right = next((pair for pair in _QUOTES if not set(pair) & set(line)), _QUOTES[0])
    return f"{left}{line}{right}"

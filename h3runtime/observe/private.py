"""What must not reach a log: prompts and keys, by the name they are given under and by what they are.

Does: tell which names are private, and blot out of any text the words that somebody has declared private, and what
follows `Bearer`. Does not: guess. A text is declared where it is known (`keep_private`: the engine process for a job,
the service for a request), since afterwards it may turn up anywhere, in a library's exception for one.
Fed by `jobs`, `api` and `logs.configure`; asked by `logs` for every line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

CLIENTS = frozenset({"prompt", "negative_prompt", "request", "body"})
"""Names whose values may hold a client's own words: left out."""
SECRET = re.compile(
    r"authorization|secret|passw|cookie|credential|(?:^|[^a-z])(?:api_?)?key(?:s|_id)?(?:$|[^a-z])|token(?!iz)",
    re.IGNORECASE,
)
"""Names whose values open doors; `tokenizer` and `keyframes` are none."""
BEARER = re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE)
BLOT = "[private]"
SHORTEST = 8
"""Characters. A shorter text says little, and blotting it out would take words out of every line."""

PLAIN = re.compile(r"[ !#-&(-\[\]-~]+")
"""What no quoting changes: printable ASCII but for quotation marks and the backslash."""

BACKSLASHES = re.compile(r"\\++")
TOKEN = re.compile(
    r"\\++(?:x(?P<two>[0-9a-fA-F]{2})|u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8})"
    r"|(?P<short>[bfnrt])|(?P<quoted>.)|\Z)|(?P<plain>.)",
    re.DOTALL,
)
"""One character however it is written, with all backslashes before it. Nothing in it is tried twice."""
SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
"""What JSON and `repr` write with a letter."""
LAST_CODE, LAST_UNIT = 0x10FFFF, 0xFFFF

_declared: ContextVar[list[_Declared] | None] = ContextVar("h3runtime_private", default=None)


@contextmanager
def privacy() -> Iterator[None]:
    """Inside, `keep_private` counts; also in tasks and worker threads that were given a copy of the context."""
    token = _declared.set([])
    try:
        yield
    finally:
        _declared.reset(token)


def keep_private(*texts: str) -> None:
    """No line of this context shows these any more. Of no effect outside of `privacy`."""
    if (declared := _declared.get()) is not None:
        declared += [_Declared(text) for text in texts if len(text) >= SHORTEST]


def texts_in(value: object) -> list[str]:
    """Every text at any depth of what JSON knows; names aren't."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [text for item in value for text in texts_in(item)] if isinstance(value, list) else []


def blotted(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without what is private in this context, without `secrets`, and without what follows `Bearer`."""
    for word in secrets:
        text = text.replace(word, BLOT)
    for declared in _declared.get() or ():
        text = declared.out_of(text)
    return BEARER.sub(rf"\1\2{BLOT}", text)


class _Declared:
    """A private text, found by what is left of it and of a line once all quoting is undone.

    Undoing takes a fifth of a microsecond a character, so it is done for the first line that may hold the text: hardly
    any line may. No expression is made of the text itself: one with optional backslashes at every character takes
    for ever on a line of backslashes, and whoever sends a prompt chooses both.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._run = max(PLAIN.findall(text), key=len, default="")
        self._bare: str | None = None

    def out_of(self, line: str) -> str:
        if not self._may_be_in(line):
            return line
        if self._bare is None:
            self._bare, _ = _bared(self._text)
        spans = _runs(line, len(self._text)) if not self._bare else self._spans(line, self._bare)
        return _without(line, spans)

    def _may_be_in(self, line: str) -> bool:
        """However it is quoted: nothing gets shorter, plain characters stay, those beyond ASCII need a backslash."""
        if len(line) < len(self._text) or self._run not in line:
            return False
        return self._text.isascii() or not line.isascii() or "\\" in line

    def _spans(self, line: str, bare: str) -> Iterator[tuple[int, int]]:
        """(start, stop) of every place in `line`. What is shorter than the text isn't the text: it had more backslashes
        than this, and no quoting takes any away."""
        found, places = _bared(line)
        at = found.find(bare)
        while at >= 0:
            start, stop = places[at][0], places[at + len(bare) - 1][1]
            while self._text.endswith("\\") and line.startswith("\\", stop):
                stop += 1
            is_whole = stop - start >= len(self._text)
            if is_whole:
                yield start, stop
            at = found.find(bare, at + (len(bare) if is_whole else 1))


def _bared(text: str) -> tuple[str, list[tuple[int, int]]]:
    """`text` as UTF-16 units, every escape undone and no backslash left, however many times it was quoted; and where in
    `text` each unit stands. The backslashes before a character stand with it."""
    units: list[str] = []
    places: list[tuple[int, int]] = []
    for token in TOKEN.finditer(text):
        found = _units(token)
        units += found
        places += [token.span()] * len(found)
    return "".join(units), places


def _units(token: re.Match[str]) -> list[str]:
    """None for backslashes at the end, and for a number that is no character's."""
    kind = token.lastgroup
    if kind is None:
        return []
    written = token[kind]
    code = int(written, 16) if kind in ("two", "four", "eight") else ord(SHORT[written] if kind == "short" else written)
    if code <= LAST_UNIT:
        return [chr(code)]
    high, low = divmod(code - LAST_UNIT - 1, 0x400)
    return [chr(0xD800 + high), chr(0xDC00 + low)] if code <= LAST_CODE else []


def _runs(line: str, length: int) -> Iterator[tuple[int, int]]:
    """Of at least so many backslashes: all that there is of a text of nothing else."""
    return (found.span() for found in BACKSLASHES.finditer(line) if len(found[0]) >= length)


def _without(line: str, spans: Iterable[tuple[int, int]]) -> str:
    pieces, kept = list[str](), 0
    for start, stop in spans:
        pieces += (line[kept:start], BLOT)
        kept = stop
    return "".join((*pieces, line[kept:]))

"""What must not reach a log: prompts and keys, by the name they are given under and by what they are.

Does: tell which names are private, and blot out of any text the words that somebody has declared private, and what
follows `Bearer`. Does not: guess. A text is declared where it is known (`keep_private`: the engine process for a job,
the service for a request), since afterwards it may turn up anywhere, in a library's exception for one.
Fed by `jobs`, `api` and `logs.configure`; asked by `logs` for every line.
"""

from __future__ import annotations

import json
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
    """A private text. The expression that finds it is made for the first line that may hold it: that takes a quarter of
    a millisecond for each character, with the interpreter locked, and hardly any line may."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._run = max(PLAIN.findall(text), key=len, default="")
        self._pattern: re.Pattern[str] | None = None

    def out_of(self, line: str) -> str:
        if not self._may_be_in(line):
            return line
        if self._pattern is None:
            self._pattern = _pattern(self._text)
        return self._pattern.sub(BLOT, line)

    def _may_be_in(self, line: str) -> bool:
        """However it is quoted: nothing gets shorter, plain characters stay, those beyond ASCII need a backslash."""
        if len(line) < len(self._text) or self._run not in line:
            return False
        return self._text.isascii() or not line.isascii() or "\\" in line


def _pattern(text: str) -> re.Pattern[str]:
    """Finds it as it is and as `repr` or JSON quotes it, also one inside the other."""
    return re.compile("".join(_quoted(character) for character in text))


def _quoted(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in "\\\"'":
        return re.escape(character)
    code, short = ord(character), json.dumps(character)[1:-1].lstrip("\\")
    units = character.encode("utf-16-be", "surrogatepass").hex()
    escapes = [
        re.escape(short),
        f"x{code:02x}",
        f"u{code:04x}",
        f"U{code:08x}",
        *([f"u{units[:4]}\\\\+u{units[4:]}"] if units[4:] else []),
    ]
    plain = re.escape(character) if character not in "\\\"'" else rf"\\*{re.escape(character)}"
    return rf"(?:{plain}|\\+(?:{'|'.join(escape for escape in escapes if escape)}))"

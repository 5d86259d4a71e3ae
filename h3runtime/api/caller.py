"""Who asks, and under which key: what a request says beside its body.

`routes` and the OpenAI shape read it from the request; the `Service` acts on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import Request

from h3runtime.api.auth import owner_of
from h3runtime.api.problems import request_id_of
from h3runtime.errors import Offence, invalid

KEY_HEADER = "Idempotency-Key"
MAX_KEY = 255
KEY_LEGAL = f"one text of 1..{MAX_KEY} printable ASCII characters, in double quotes or without"


@dataclass(frozen=True, slots=True)
class Caller:
    """owner: name of the key that was shown, "" where none is asked for. idempotency_key: "" without one."""

    owner: str = ""
    idempotency_key: str = ""
    request_id: str = ""

    @classmethod
    def of(cls, request: Request) -> Caller:
        """`InvalidRequest` for an `Idempotency-Key` that is none."""
        key = _key(request.headers.getlist(KEY_HEADER))
        return cls(owner_of(request), key, request_id_of(request))


def _key(given: list[str]) -> str:
    """The text of the header, without the quotes of a structured field (RFC 9651)."""
    if not given:
        return ""
    text = given[0].strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = re.sub(r'\\(["\\])', r"\1", text[1:-1])
    if len(given) > 1 or not re.fullmatch(rf"[ -~]{{1,{MAX_KEY}}}", text):
        raise invalid([Offence(KEY_HEADER, "is no key", KEY_LEGAL)])
    return text

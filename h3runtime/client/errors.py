"""What goes wrong between a client and its server.

    ClientError
    ├── Unreachable       no connection, or one that broke
    ├── Refused           the server answered with a problem; carries its code, status and offences
    └── BrokenDownload    what came is not what the server announced

Raised by `wire` and `downloading`; the command line prints them like every other error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from h3runtime.errors import H3Error, Offence

SHOWN_TEXT = 200
"""Characters that are told of an answer that is no problem document, such as a proxy's."""


class ClientError(H3Error):
    code, title = "client_error", "The request failed"


class Unreachable(ClientError):
    """The server can't be reached, or the connection broke. was_sent: it may have acted on the request."""

    code, title = "unreachable", "The server can't be reached"

    def __init__(self, message: str, offences: Iterable[Offence] = (), was_sent: bool = False) -> None:
        super().__init__(message, offences)
        self.was_sent = was_sent

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.offences, self.was_sent)


class Refused(ClientError):
    """The server's own words. code: as in service-contract "Errors". retry_after: seconds, where it gives any."""

    title = "The server refused"

    def __init__(
        self,
        message: str,
        offences: Iterable[Offence] = (),
        code: str = "refused",
        status: int = 0,
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, offences)
        self.code = code  # type: ignore[misc]  # of this answer, not of the class
        self.status = status  # type: ignore[misc]
        self.request_id = request_id
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        told = (self.message, self.offences, self.code, self.status, self.request_id, self.retry_after)
        return type(self), told


class BrokenDownload(ClientError):
    code, title = "broken_download", "The download is not what was announced"


def refusal_of(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """From an answer that is no success. headers: names in lower case."""
    told = _problem(body)
    retry = headers.get("retry-after", "")
    return Refused(
        str(told.get("detail") or told.get("title") or f"the server answered {status}{_shown(body, headers)}"),
        [_offence(item) for item in told.get("errors", ()) if isinstance(item, dict)],
        code=str(told.get("code", "refused")),
        status=status,
        request_id=str(told.get("request_id") or headers.get("x-request-id", "")),
        retry_after=float(retry) if retry.isdecimal() else None,
    )


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _offence(item: Mapping[str, Any]) -> Offence:
    return Offence(*(str(item.get(name, "")) for name in ("field", "message", "legal")))


def _shown(body: bytes, headers: Mapping[str, str]) -> str:
    if location := headers.get("location"):
        return f" and points to {location[:SHOWN_TEXT]}, which is not followed"
    text = " ".join(body[: 2 * SHOWN_TEXT].decode("utf-8", "replace").split())[:SHOWN_TEXT]
    return f": {text}" if text else ""

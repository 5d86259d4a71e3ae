"""Who may ask: bearer keys, and the name of the one that a request bears.

Does: read the keys once, keep nothing of them but SHA-256 digests, refuse a request without a good one before a byte of
its body is read, and name its owner to whoever comes after. Does not: decide what an owner may see; jobs carry their
owner's name, and `service` compares.
Fed by: `H3_API_KEY` (owner `default`) and `H3_API_KEYS_FILE`, a line `name:sha256-hex` each. Without either nobody is
asked, and every job's owner is "".

Keys are long random words, so a plain digest of one can't be turned round. A request's digest is compared with all
that are known, each in constant time: how long an answer takes tells neither how much of a key was right nor whose.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from h3runtime.api.limits import refuse
from h3runtime.api.problems import problem
from h3runtime.errors import Offence, SettingsError, Unauthorized
from h3runtime.settings import Settings

DEFAULT_OWNER = "default"
OPEN_PATHS = frozenset({"/", "/page", "/live", "/ready", "/metrics", "/openapi.json", "/docs"})
"""What probes, collectors and a browser's first look need, before anybody can give a key."""
OPEN_BELOW = ("/page/", "/v2/health/")
LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,64}):(?P<digest>[0-9a-fA-F]{64})")
LEGAL_LINE = "NAME:SHA-256-HEX; names of up to 64 letters, digits, dots, dashes and underscores, each once"
MAX_FILE_BYTES = 2**20

log = structlog.get_logger("h3runtime.auth")


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """Owner and SHA-256 digest of every key. None of them: nobody is asked for one."""

    digests: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Keys:
        """`SettingsError` for a file that can't be used, by the number of its line and never by what stands there."""
        own = settings.api_key
        first = [(DEFAULT_OWNER, hashlib.sha256(own.get_secret_value().encode()).digest())] if own else []
        return cls(tuple(_joined(first, settings.api_keys_file)))

    def __bool__(self) -> bool:
        return bool(self.digests)

    def owner_of(self, key: bytes) -> str | None:
        """Whose key it is, None if it is nobody's."""
        digest = hashlib.sha256(key).digest()
        matches = [(name, hmac.compare_digest(digest, known)) for name, known in self.digests]
        return next((name for name, is_it in matches if is_it), None)


class Auth:
    """Wraps the app: sets `request.state.owner`, or answers 401."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        key = bearer_key(scope["headers"])
        owner = self._keys.owner_of(key) if key else None
        if self._keys and owner is None and not is_open(scope["path"]):
            why = "this server doesn't know the key" if key else "this server asks for a key: Authorization: Bearer KEY"
            answer = problem(Unauthorized(why), str(state.get("request_id", "")), path=scope["path"])
            await refuse(answer, scope, receive, send)
            return
        state["owner"] = owner or ""
        await self._app(scope, receive, send)


def owner_of(request: Request) -> str:
    """The name of the key that the request bore; "" where none is asked for."""
    return str(getattr(request.state, "owner", ""))


def is_open(path: str) -> bool:
    """Whether nobody is asked for a key there."""
    return path in OPEN_PATHS or path.startswith(OPEN_BELOW)


def bearer_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key of the one `Authorization: Bearer KEY` header; empty if there is none, more than one, or another kind."""
    given = [value for name, value in headers if name.lower() == b"authorization"]
    scheme, _, key = given[0].strip().partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return key.strip() if scheme.lower() == b"bearer" else b""


def exposure_warning(settings: Settings) -> str | None:
    """What an operator should know about a server that others can reach and that asks nobody for a key."""
    if is_loopback(settings.host) or settings.api_key or settings.api_keys_file:
        return None
    return (
        f"listens on {settings.host} and asks for no key: whoever reaches the port may use it and see every job; "
        "set H3_API_KEY or H3_API_KEYS_FILE"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a name other than `localhost` could be anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _joined(first: Sequence[tuple[str, bytes]], file: Path | None) -> list[tuple[str, bytes]]:
    found = list(first)
    for number, line in _lines(file) if file else ():
        match = LINE.fullmatch(line)
        if match is None:
            raise _broken(file, f"line {number} is no NAME:SHA-256-HEX")
        name, digest = match["name"], bytes.fromhex(match["digest"])
        if any(name == other for other, _ in found):
            raise _broken(file, f"line {number} names an owner that has a key already")
        if any(digest == other for _, other in found):
            raise _broken(file, f"line {number} holds the key of another owner")
        found.append((name, digest))
    if file and len(found) == len(first):
        raise _broken(file, "it holds no key")
    return found


def _lines(file: Path) -> list[tuple[int, str]]:
    """Numbered from 1, without blank ones and comments."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
            mode = file.stat().st_mode
    except OSError as error:
        raise _broken(file, f"it can't be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise _broken(file, f"it is larger than {MAX_FILE_BYTES} bytes")
    if mode & 0o077:
        log.warning("keys_file_readable", file=file, mode=f"{mode & 0o777:03o}")
    # What is no ASCII matches no line's form, and is named by its number then.
    lines = [line.strip() for line in content.decode("latin-1").split("\n")]
    return [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]


def _broken(file: Path | None, why: str) -> SettingsError:
    return SettingsError(f"H3_API_KEYS_FILE: {file}: {why}", [Offence("H3_API_KEYS_FILE", why, LEGAL_LINE)])

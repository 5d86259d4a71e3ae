"""Where a server is. `wire` connects there; nothing is looked up here."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from h3runtime.errors import Offence, invalid

LEGAL = "http://HOST:PORT or https://HOST, with a path before the server's own if it has one"


@dataclass(frozen=True, slots=True)
class Address:
    """base: what stands before every path, "" or "/h3". url: as a person reads it."""

    is_tls: bool
    host: str
    port: int
    base: str

    @property
    def url(self) -> str:
        scheme = "https" if self.is_tls else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.base}"


def address_of(url: str) -> Address:
    """`InvalidRequest` for what is no address of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _no_address(url, "can't be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _no_address(url, "is no http or https address")
    if parts.username is not None or parts.query or parts.fragment or not url.isascii() or any(c <= " " for c in url):
        raise _no_address(url, "holds more than an address")
    is_tls = parts.scheme == "https"
    return Address(is_tls, parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/"))


def _no_address(url: str, why: str) -> Exception:
    return invalid([Offence("url", f"{url!r:.100} {why}", LEGAL)])

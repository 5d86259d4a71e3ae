"""Which URLs this server would fetch, and which addresses it would connect to for them. Connects to nothing.

    host      must be one of `H3_URL_ALLOW`: by its exact name, or below a `*.` name; on the entry's port if it has one
    address   must be a public one, unless the host was allowed as an IP address or as `localhost`: whoever writes down
              `127.0.0.1` means it, whoever writes down a name doesn't know what its DNS will say tomorrow

Fed by `fetching` with the URL of a request and with every redirect; the rules are service-contract "media" and
"Settings".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

PORTS = {"http": 80, "https": 443}
MAX_URL = 4096
"""Characters. Signed URLs have hundreds."""
MAX_NAME = 253
"""Characters of a host's name (RFC 1035)."""
NAME = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
LEFT_ALONE = "/%:@!$&'()*+,;=~?"
"""What a path or query keeps as it is; escapes in it were made by the client."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Where a gateway would make an IPv4 address of the last 32 bits (RFC 6052)."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class NotFetchedError(ValueError):
    """Why a URL isn't fetched from, in words for the client; never the URL itself, which may hold a signature."""


@dataclass(frozen=True, slots=True)
class Place:
    """A URL taken apart. host: lower case, ASCII, an address without brackets. target: as the request line has it."""

    is_tls: bool
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """What the `Host` header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"


def place_of(url: str) -> Place:
    """`NotFetchedError` for anything but an http or https URL of a plain host, without credentials."""
    if len(url) > MAX_URL:
        raise NotFetchedError(f"has more than {MAX_URL} characters")
    # The library drops tabs and line breaks in silence, so what it judges would not be what was sent.
    if any(ord(character) <= 32 or ord(character) == 127 for character in url):
        raise NotFetchedError("holds white space or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise NotFetchedError("is not a URL") from None
    if parts.scheme not in PORTS:
        raise NotFetchedError("is neither http nor https")
    if "@" in parts.netloc:
        raise NotFetchedError("holds credentials")
    if port == 0 or not parts.hostname:
        raise NotFetchedError("is not a URL")
    target = quote(parts.path or "/", LEFT_ALONE) + (f"?{quote(parts.query, LEFT_ALONE)}" if parts.query else "")
    return Place(parts.scheme == "https", _host(parts.hostname), port or PORTS[parts.scheme], target)


class AllowedHosts:
    """The list of `H3_URL_ALLOW`."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._entries = tuple(entries)
        self._split = [_split(entry) for entry in entries]

    @property
    def legal(self) -> str:
        """For the client: where it may send us."""
        return "a URL on " + ", ".join(self._entries) if self._entries else "upload or data: no host is allowed here"

    def judge(self, place: Place) -> bool:
        """Whether the place may also lie at a private address. `NotFetchedError` if its host isn't allowed at all."""
        entries = [(host, port) for host, port in self._split if _matches(host, place.host)]
        if not self._entries:
            raise NotFetchedError("can't be fetched: this server fetches from no host")
        if all(port not in (None, place.port) for _, port in entries):
            raise NotFetchedError(f"is on {place.authority}, which this server doesn't fetch from")
        return any(host == "localhost" or _address(host) is not None for host, _ in entries)


def is_public(text: str) -> bool:
    """Whether an address belongs to the internet at large; one that carries another inside is judged by that one."""
    address = _address(text)
    if address is None:
        return False
    inner = _inner(address)
    if inner is not None:
        return is_public(str(inner))
    is_odd = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    is_site = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not (address.is_private or address.is_loopback or is_odd or is_site)


def _inner(address: Address) -> Address | None:
    """The IPv4 address in an IPv6 one that is routed by it: mapped, 6to4, NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _host(text: str) -> str:
    address = _address(text)
    if address is not None:
        return str(address)
    try:
        name = text.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        name = ""
    if len(name) > MAX_NAME or NAME.fullmatch(name) is None:
        raise NotFetchedError("names no host")
    return name


def _address(text: str) -> Address | None:
    """None for a name; also for an address with a zone, which means something on one machine only."""
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def _split(entry: str) -> tuple[str, int | None]:
    """A host in the form of `Place`, and its port."""
    host, colon, port = entry.rpartition(":") if not entry.endswith("]") else (entry, "", "")
    bare = (host if colon else entry).strip("[]")
    address = _address(bare)
    return bare if address is None else str(address), int(port) if colon else None


def _matches(allowed: str, host: str) -> bool:
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed

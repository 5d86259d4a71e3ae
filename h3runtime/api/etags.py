"""`If-None-Match` (RFC 9110 §13.1.2): whether a client has the newest copy already. Asked by `routes` and the page."""

from __future__ import annotations


def is_known(etag: str, if_none_match: str) -> bool:
    """etag: of what would be sent, in its quotes. if_none_match: the header, "" without one."""
    known = [item.strip().removeprefix("W/") for item in if_none_match.split(",")]
    return if_none_match.strip() == "*" or etag in known

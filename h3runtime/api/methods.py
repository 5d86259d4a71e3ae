"""Which methods an address takes, over all of its routes: what `Allow` has to list (RFC 9110 §15.5.6).

The router knows the first route that matches only, and here GET, HEAD and DELETE of one address are routes of their
own. `problems` asks.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route


def allowed_methods(routes: Iterable[BaseRoute], path: str) -> str:
    """Comma-separated, in alphabetical order; "" for an address that nothing answers."""
    there = [route for route in routes if isinstance(route, Route) and route.path_regex.match(path)]
    return ", ".join(sorted({method for route in there for method in route.methods or ()}))

"""A route for GET that HEAD reaches too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def get_route(app: FastAPI, path: str, **described: Any) -> Callable[[Endpoint], Endpoint]:
    """A route for GET, and for HEAD, which probes and proxies use: the same without the body, and not described."""

    def add(endpoint: Endpoint) -> Endpoint:
        app.head(path, include_in_schema=False)(endpoint)
        return app.get(path, **described)(endpoint)

    return add

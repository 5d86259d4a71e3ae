"""What wraps the routes, in its order.

    requests    ids, log lines, counts, and a problem for whatever would go out otherwise
    headers     security headers, CORS, foreign pages
    auth        keys
    limits      sizes and pace of bodies

`app` calls `surround` once it has its routes.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

from h3runtime.api.auth import Auth, Keys
from h3runtime.api.headers import Browsers
from h3runtime.api.limits import BodyLimit
from h3runtime.api.requests import Requests
from h3runtime.observe.metrics import Metrics
from h3runtime.settings import Settings


def surround(
    app: FastAPI, settings: Settings, metrics: Metrics, is_draining: Callable[[], bool] = lambda: False
) -> None:
    """is_draining: whether no new work is taken any more. `SettingsError` for a file of keys that can't be used."""
    keys = Keys.from_settings(settings)
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimit,
        json_bytes=settings.max_json_bytes,
        upload_bytes=settings.max_upload_bytes,
        read_seconds=settings.read_seconds,
        is_draining=is_draining,
    )
    app.add_middleware(Auth, keys=keys)
    app.add_middleware(Browsers, settings=settings, keys=keys)
    app.add_middleware(Requests, metrics=metrics)

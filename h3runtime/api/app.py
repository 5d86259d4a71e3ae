"""The app. A factory: every call makes an app of its own, and importing this module does nothing.

None of its `routes` computes, and none touches a device, so that health answers while a job runs. What wraps them, from
outside: `requests` (ids, logs, counts), `limits` (body sizes), the framework with the handlers of `problems`.
"""

from __future__ import annotations

from fastapi import FastAPI

from h3runtime import __version__
from h3runtime.api import problems
from h3runtime.api.limits import BodyLimit
from h3runtime.api.openapi import describe
from h3runtime.api.requests import Requests
from h3runtime.api.routes.generate import add_generate
from h3runtime.api.routes.health import add_health
from h3runtime.api.routes.jobs import add_jobs
from h3runtime.api.service import Service


def create_app(service: Service) -> FastAPI:
    """The app of one service, which the caller starts and closes."""
    app = FastAPI(title="h3runtime", version=__version__, redoc_url=None, summary="MiniMax H3 as a resident service.")
    problems.install(app)
    for add in (add_generate, add_jobs, add_health):
        add(app, service)
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimit, json_bytes=service.settings.max_json_bytes, upload_bytes=service.settings.max_upload_bytes
    )
    app.add_middleware(Requests, metrics=service.metrics)
    describe(app)
    return app

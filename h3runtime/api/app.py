"""The app. A factory: every call makes an app of its own, and importing this module does nothing.

None of its `routes` computes, and none touches a device, so that health answers while a job runs. What wraps them is in
`layers`; the framework's own errors are answered by `problems`.
"""

from __future__ import annotations

from fastapi import FastAPI

from h3runtime import __version__
from h3runtime.api import problems
from h3runtime.api.docs_page import add_docs
from h3runtime.api.layers import surround
from h3runtime.api.openai import add_openai
from h3runtime.api.openapi import describe
from h3runtime.api.page import add_page
from h3runtime.api.routes.generate import add_generate
from h3runtime.api.routes.health import add_health
from h3runtime.api.routes.jobs import add_jobs
from h3runtime.api.service import Service


def create_app(service: Service) -> FastAPI:
    """The app of one service, which the caller starts and closes."""
    app = FastAPI(
        title="h3runtime",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        summary="MiniMax H3 as a resident service.",
        # Where the library is there the framework traces by itself, exceptions' texts too; `requests` does it instead.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    problems.install(app)
    for add in (add_generate, add_jobs, add_openai, add_health):
        add(app, service)
    add_docs(app)
    add_page(app, service)
    surround(app, service.settings, service.metrics, lambda: service.is_draining)
    describe(app, asks_for_keys=service.asks_for_keys)
    return app

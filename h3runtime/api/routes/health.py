"""What probes, collectors and operators ask: alive, ready, metrics. None of it touches a device."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from h3runtime.api.health import LiveAnswer, ReadyAnswer, live_answer, ready_answer
from h3runtime.api.routes.answered import Json
from h3runtime.api.routes.described import METRICS, health
from h3runtime.api.routes.get import get_route
from h3runtime.api.service import Service
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.observe.metrics import CONTENT_TYPE


def add_health(app: FastAPI, service: Service) -> None:
    async def live() -> Response:
        """200 while the server answers and the engine isn't dead for good."""
        answer = live_answer(service.state)
        return Json(answer, 503 if answer["status"] == "dead" else 200)

    async def ready() -> Response:
        """200 when jobs are taken, else 503; the body says what stands in the way."""
        answer = ready_answer(
            service.state,
            service.is_disk_full,
            service.queue.waiting,
            service.settings,
            service.codecs,
            service.shelf.held,
        )
        return Json(answer, 200 if answer["status"] == EngineStatus.READY else 503)

    get_route(app, "/live", **health("live", LiveAnswer))(live)
    get_route(app, "/ready", **health("ready", ReadyAnswer))(ready)
    get_route(app, "/v2/health/live", **health("v2_live", LiveAnswer))(live)
    get_route(app, "/v2/health/ready", **health("v2_ready", ReadyAnswer))(ready)

    @get_route(app, "/metrics", **METRICS)
    async def metrics() -> Response:
        """Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

"""What probes, collectors and operators ask: alive, ready, metrics. None of it touches a device."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from h3runtime.api.health import LiveAnswer, ReadyAnswer, live_answer, ready_answer
from h3runtime.api.routes.get import get_route
from h3runtime.api.service import Service
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.observe.metrics import CONTENT_TYPE


def add_health(app: FastAPI, service: Service) -> None:
    async def live(response: Response) -> LiveAnswer:
        """200 while the server answers and the engine isn't dead for good."""
        answer = live_answer(service.state)
        response.status_code = 503 if answer.status == "dead" else 200
        return answer

    async def ready(response: Response) -> ReadyAnswer:
        """200 when jobs are taken, else 503; the body says what stands in the way."""
        full = service.folders.is_full()
        answer = ready_answer(service.state, full, service.queue.waiting, service.settings)
        response.status_code = 200 if answer.status == EngineStatus.READY else 503
        return answer

    refusal: dict[int | str, dict[str, Any]] = {503: {"description": "The same body, with the reason."}}
    get_route(app, "/live", tags=["health"], operation_id="live", responses=refusal)(live)
    get_route(app, "/ready", tags=["health"], operation_id="ready", responses=refusal)(ready)
    get_route(app, "/v2/health/live", tags=["health"], operation_id="v2_live", responses=refusal)(live)
    get_route(app, "/v2/health/ready", tags=["health"], operation_id="v2_ready", responses=refusal)(ready)

    @get_route(app, "/metrics", tags=["health"], operation_id="metrics")
    async def metrics() -> Response:
        """Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

"""A job as the answer to a request: JSON, with where the job is and when to look again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from h3runtime.api.answers import job_answer
from h3runtime.api.as_json import as_json
from h3runtime.jobs.table import Job

RETRY_SECONDS = 1
"""What a client that was not kept waiting is advised to wait before it looks."""


class Json(Response):
    """Plain values, by `as_json`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return as_json(content)


def answered(job: Job, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """With `Location`, and `Retry-After` for a job that hasn't ended."""
    told = {"Location": f"/jobs/{job.id}", **(headers or {})}
    if not job.status.ended:
        told["Retry-After"] = str(RETRY_SECONDS)
    return Json(job_answer(job), status, told)

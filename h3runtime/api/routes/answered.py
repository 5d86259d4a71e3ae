"""A job as the answer to a request: JSON, with where the job is and when to look again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from h3runtime.api.answers import job_answer
from h3runtime.jobs.table import Job

RETRY_SECONDS = 1
"""What a client that was not kept waiting is advised to wait before it looks."""


class Json(Response):
    """Plain values as JSON. What isn't finite, which JSON has no word for, is null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            return _dumped(content)
        except ValueError:
            return _dumped(_finite(content))


def answered(job: Job, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """With `Location`, and `Retry-After` for a job that hasn't ended."""
    told = {"Location": f"/jobs/{job.id}", **(headers or {})}
    if not job.status.ended:
        told["Retry-After"] = str(RETRY_SECONDS)
    return Json(job_answer(job), status, told)


def _dumped(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

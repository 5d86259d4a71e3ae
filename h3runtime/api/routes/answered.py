"""A job as the answer to a request: JSON, with where the job is."""

from __future__ import annotations

from starlette.responses import JSONResponse

from h3runtime.api.answers import job_answer
from h3runtime.jobs.table import Job


def answered(job: Job, status: int = 200) -> JSONResponse:
    body = job_answer(job).model_dump(mode="json")
    return JSONResponse(body, status, {"Location": f"/jobs/{job.id}"})

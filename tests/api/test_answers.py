"""What a job's answer costs and that it is what OpenAPI says; a list of ten thousand."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from ulid import ULID

from h3runtime.api.answers import JobAnswer, PageAnswer, job_answer, page_answer
from h3runtime.api.estimates import EstimateAnswer
from h3runtime.api.health import LiveAnswer, ReadyAnswer
from h3runtime.core import Clip, GenerateSpec, SamplerSettings, Task, Work
from h3runtime.errors import EncoderFailed
from h3runtime.jobs import job_rows
from h3runtime.jobs.rows import spec_text, state_text
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.table import Job, Status
from tests.api.server import SMALL, Running


def finished(number: int = 0) -> Job:
    scratch = Path("/nowhere")
    spec = GenerateSpec(
        str(ULID()), Task.T2VA, "a cat " * 50, 1344, 768, 124, SamplerSettings(12), Path("/out/cat.mp4"), scratch
    )
    timings = dict.fromkeys(("conditioning", "sampling", "audio_decode", "video_decode", "mux"), 1.0)
    clip = Clip(spec.output, "ab" * 32, 10**7, 1344, 768, 124, 165_333, number, 12, "sdpa", "dequant", timings, {}, {})
    return Job(spec, status=Status.SUCCEEDED, clip=clip, work=Work({"sampling": 1e15}))


@pytest.mark.parametrize("job", [finished(), Job(finished().spec), Job(finished().spec, error=EncoderFailed("no"))])
def test_an_answer_is_what_its_model_says(job: Job) -> None:
    plain = job_answer(job)
    assert JobAnswer.model_validate(plain, strict=True).model_dump() == plain
    assert (type(plain["fps"]), plain["fps"]) == (int, 24)
    assert plain.keys() == JobAnswer.model_fields.keys()


def test_answers_over_http_are_what_their_models_say(server: Running) -> None:
    server.post({**SMALL, "n": 2, "diagnostics": True})
    server.post({**SMALL, "prompt": "fail_at=mux"})
    for path, model in (("/jobs", PageAnswer), ("/live", LiveAnswer), ("/ready", ReadyAnswer)):
        answer = server.client.get(path).json()
        assert model.model_validate(answer).model_dump() == answer
    told = server.client.post("/estimate", json=SMALL).json()
    assert EstimateAnswer.model_validate(told).model_dump() == told


def test_a_hundred_answers_cost_little() -> None:
    """15 ms of this thread; the fastest of several counts."""
    jobs = [finished(number) for number in range(100)]
    assert min(_seconds(jobs) for _ in range(10)) < 0.015


def _seconds(jobs: list[Job]) -> float:
    began = time.thread_time()
    json.dumps(page_answer(jobs, True))
    return time.thread_time() - began


def test_ten_thousand_jobs_are_listed_at_once(server: Running) -> None:
    """20 ms of this process; the fastest of several counts. None of them is in memory, as after a restart."""
    many = fill(server.service.table.store, 10_000)
    seen: list[str] = []
    page = server.client.get("/jobs", params={"limit": 100, "after": many[-1]}).json()
    while page["has_more"] and len(seen) < 300:
        seen += [job["id"] for job in page["data"]]
        page = server.client.get("/jobs", params={"limit": 100, "after": page["data"][-1]["id"]}).json()
    assert seen == many[-2:-302:-1]
    for query in ({}, {"after": many[5000]}):
        times = []
        for _ in range(15):
            began = time.process_time()
            assert server.client.get("/jobs", params=query).status_code == 200
            times.append(time.process_time() - began)
        assert min(times) < 0.020, (query, sorted(times))
    with server.service.table.store.writing() as connection:
        job_rows.remove(connection, many)


def fill(store: JobStore, count: int) -> list[str]:
    """Rows of finished jobs that differ by their ids; these, in order of arrival."""
    job = finished()
    spec, state = spec_text(job.spec), state_text(job)
    ids = sorted(str(ULID()) for _ in range(count))
    rows = [(i, "", "", "succeeded", 1, None, spec.replace(job.id, i), state.replace(job.id, i)) for i in ids]
    with store.writing() as connection:
        names = "id, owner, key, status, event, expires, spec, state"
        connection.executemany(f"INSERT INTO jobs ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    return ids

"""Probes, metrics, OpenAPI, and problems that the framework makes; all of them fast while a job computes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from h3runtime.observe.metrics import KEPT_SECONDS
from tests.api.server import SMALL, Running, running


def test_ready_tells_what_the_engine_is(server: Running) -> None:
    answer = server.client.get("/ready")
    state = answer.json()
    assert (answer.status_code, state["status"], state["fraction"], state["reason"]) == (200, "ready", 1.0, "")
    assert state["models"] == [
        {
            "component": "transformer",
            "file": "dit.safetensors",
            "sha256": "ab" * 32,
            "format": "nvfp4",
            "bytes": 10,
            "synthetic": True,
            "model": None,
            "partition": None,
            "adaln": None,
            "qkv": None,
            "load_seconds": 0.5,
            "bytes_per_second": 20.0,
        }
    ]
    assert state["attention"] == {
        "default": "sdpa",
        "why": "auto: fits",
        "available": ["sdpa", "exact"],
        "grades": {"sdpa": "reference"},
        "unavailable": {"sage2": "no GPU"},
        "exact": [],
        "notes": {},
    }
    assert (state["device"], state["residency"]) == ("cpu", "all")
    assert (state["limits"]["max_frames"], state["limits"]["max_text_rows"]) == (362, 30_000)
    assert state["startup"]["load_seconds"] == {"transformer": 0.5}
    assert state["startup"]["load_bytes_per_second"] == {"transformer": 20.0}
    assert state["loading"] is None
    assert state["startup"]["cold_start_seconds"] > 0
    assert state["queue_depth"] == 0
    assert state["self_test"] == {
        "status": "passed",
        "reason": "",
        "seconds": 0.01,
        "cached": True,
        "kept": "",
        "checks": [
            {
                "family": "attention",
                "kernel": "sdpa",
                "asked": "65536 rows",
                "passed": True,
                "error": 0.002,
                "tolerance": 0.02,
                "seconds": 0.5,
                "cached": True,
                "reason": "",
            }
        ],
    }


@pytest.mark.parametrize(("alias", "path"), [("/v2/health/live", "/live"), ("/v2/health/ready", "/ready")])
def test_health_has_the_names_of_the_open_inference_protocol(server: Running, alias: str, path: str) -> None:
    ours, theirs = (server.client.get(asked).json() for asked in (alias, path))
    # What other programs of the machine use changes between two calls.
    assert [answer.pop("memory", None) is None for answer in (ours, theirs)] == [path == "/live"] * 2
    assert ours == theirs


def test_loading_and_warming_are_told_and_work_is_refused(tmp_path: Path) -> None:
    told = {"component": "transformer", "bytes_done": 1, "bytes_in_all": 10, "bytes_per_second": 5.0}
    with running(tmp_path / "data", (0.0, "", None, tmp_path), ready=False) as server:
        for status, gate in (("loading", "loaded"), ("warming", "warm")):
            state = server.wait_ready(status)
            assert state["loading"] == (told if status == "loading" and state["fraction"] else None)
            assert server.client.get("/ready").status_code == 503
            assert server.client.get("/live").status_code == 200
            answer = server.post(SMALL)
            assert (answer.status_code, answer.json()["code"]) == (503, "loading")
            assert int(answer.headers["retry-after"]) > 0
            (tmp_path / gate).touch()
        server.wait_ready()
        assert server.post(SMALL).json()["first_after_start"] is True
        assert server.post(SMALL).json()["first_after_start"] is False


def test_probes_answer_at_once_while_a_job_computes(server: Running) -> None:
    """A35, with the fake engine: what is measured is our own side of the pipe."""
    job = server.submit(prompt="x step_seconds=0.01 hold", steps=150)
    server.wait(job, "running")
    waits: dict[str, list[float]] = {}
    for _ in range(20):
        for path in ("/live", "/ready", "/metrics", "/openapi.json"):
            began = time.monotonic()
            assert server.client.get(path).status_code == 200
            waits.setdefault(path, []).append(time.monotonic() - began)
    assert server.client.delete(f"/jobs/{job}").status_code == 200
    for path, times in waits.items():
        # The middle one: a busy machine may hold up any of them. `benchmarks/load.py` is strict.
        assert sorted(times)[10] < 0.25, (path, times)


def test_metrics_are_prometheus_without_unbounded_labels(server: Running) -> None:
    job = server.post(SMALL).json()
    text = server.client.get("/metrics").text
    for name in ("build_info", "ready", "jobs_queued", "jobs_running", "disk_free_bytes"):
        assert f"\nh3runtime_{name}" in "\n" + text
    assert 'h3runtime_jobs_total{outcome="succeeded",task="t2va"}' in text
    assert 'h3runtime_stage_duration_seconds_bucket{le="0.1",stage="sampling"}' in text
    assert 'route="/generate"' in text
    server.client.get(f"/jobs/{job['id']}")
    server.client.get(f"/nothing/{job['id']}")
    time.sleep(KEPT_SECONDS)
    assert job["id"] not in server.client.get("/metrics").text


def test_openapi_knows_the_request_and_the_problems(server: Running) -> None:
    schema = server.client.get("/openapi.json").json()
    generate = schema["paths"]["/generate"]["post"]
    assert generate["requestBody"]["content"].keys() == {"application/json", "multipart/form-data"}
    fields = schema["components"]["schemas"]["I2vaBody"]["properties"]
    assert {"prompt", "first_frame", "format", "seed"} <= fields.keys()
    assert "MediaBody" in schema["components"]["schemas"]
    assert "application/problem+json" in generate["responses"]["default"]["content"]
    operations = [operation["operationId"] for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) == len(set(operations))
    assert server.client.get("/docs").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/generate", 405, "method_not_allowed"),
        ("DELETE", "/ready", 405, "method_not_allowed"),
        ("POST", "/generate", 415, "media_type"),
    ],
)
def test_the_frameworks_own_errors_are_problems(
    server: Running, method: str, path: str, status: int, code: str
) -> None:
    answer = server.client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert ("allow" in answer.headers) is (status == 405)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/generate", "POST"),
        ("/estimate", "GET, POST"),
        ("/jobs", "GET, HEAD"),
        ("/jobs/x", "DELETE, GET, HEAD"),
        ("/jobs/x/events", "GET"),
        ("/jobs/x/cancel", "POST"),
        ("/ready", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
        ("/v1/videos", "GET, HEAD, POST"),
        ("/v1/videos/x", "DELETE, GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_all_right_ones(server: Running, path: str, allowed: str) -> None:
    for method in ("PUT", "TRACE", "OPTIONS", "FOO"):
        answer = server.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_our_own_bug_is_a_problem_that_tells_nothing(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("/secret")

    monkeypatch.setattr(server.service.table, "page", broken)
    answer = server.client.get("/jobs")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(("given", "kept"), [("abc-1", True), ("x" * 65, False), ("a b", False), ("", False)])
def test_a_plain_request_id_is_taken_over(server: Running, given: str, kept: bool) -> None:
    answer = server.client.get("/live", headers={"X-Request-ID": given})
    assert (answer.headers["x-request-id"] == given) is kept


@pytest.mark.parametrize("path", ["/live", "/ready", "/v2/health/live", "/v2/health/ready", "/metrics", "/jobs"])
def test_head_is_get_without_the_body(server: Running, path: str) -> None:
    answer = server.client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == server.client.get(path).headers["content-type"]


def test_head_is_not_described(server: Running) -> None:
    assert all("head" not in path for path in server.client.get("/openapi.json").json()["paths"].values())

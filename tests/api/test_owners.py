"""Two keys on one server: each sees its own jobs, and the other's are as good as none wherever a job can be named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.server import SMALL, Running, running

KEYS = {"anna": "a" * 32, "bert": "b" * 32}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("owners")
    lines = [f"{name}:{hashlib.sha256(key.encode()).hexdigest()}" for name, key in KEYS.items()]
    (folder / "keys").write_text("\n".join(lines))
    with running(folder / "data", api_keys_file=folder / "keys") as found:
        yield found


def ask(server: Running, who: str, method: str, path: str, **more: Any) -> Any:
    headers = {"Authorization": f"Bearer {KEYS[who]}", **more.pop("headers", {})}
    return server.client.request(method, path, headers=headers, **more)


@pytest.fixture(scope="module")
def job(shared: Running) -> dict[str, Any]:
    """Anna's."""
    return dict(ask(shared, "anna", "POST", "/generate", json=SMALL).json())


PLACES = [
    ("GET", "/jobs/{}"),
    ("HEAD", "/jobs/{}"),
    ("GET", "/jobs/{}/content"),
    ("GET", "/jobs/{}/preview"),
    ("GET", "/jobs/{}/events"),
    ("POST", "/jobs/{}/cancel"),
    ("DELETE", "/jobs/{}"),
    ("GET", "/jobs?after={}"),
    ("GET", "/v1/videos/{}"),
    ("GET", "/v1/videos/{}/content"),
    ("DELETE", "/v1/videos/{}"),
    ("GET", "/v1/videos?after={}"),
]


@pytest.mark.parametrize(("method", "path"), PLACES)
def test_anothers_job_is_not_there(shared: Running, job: dict[str, Any], method: str, path: str) -> None:
    answer = ask(shared, "bert", method, path.format(job["id"]))
    assert answer.status_code == 404
    unknown = ask(shared, "bert", method, path.format("01J00000000000000000000000"))
    assert unknown.status_code == 404
    told, expected = answer.text.replace(job["id"], "ID"), unknown.text.replace("01J00000000000000000000000", "ID")
    assert told.partition('"request_id"')[0] == expected.partition('"request_id"')[0]
    assert ask(shared, "anna", "GET", f"/jobs/{job['id']}").status_code == 200


@pytest.mark.parametrize("field", ["continue_from", "source"])
def test_nor_can_it_be_built_on(shared: Running, job: dict[str, Any], field: str) -> None:
    answer = ask(shared, "bert", "POST", "/generate", json={**SMALL, field: {"job": job["id"]}})
    assert answer.status_code == 422
    told = {error["field"]: error["message"] for error in answer.json()["errors"]}
    assert "there is no job" in told[f"{field}.job"]


def test_lists_hold_ones_own(shared: Running, job: dict[str, Any]) -> None:
    own = ask(shared, "bert", "POST", "/generate", json=SMALL).json()["id"]
    assert [item["id"] for item in ask(shared, "bert", "GET", "/jobs").json()["data"]] == [own]
    assert job["id"] in [item["id"] for item in ask(shared, "anna", "GET", "/jobs").json()["data"]]
    assert own not in ask(shared, "anna", "GET", "/jobs").text


def test_keys_of_requests_are_ones_own(shared: Running) -> None:
    headers = {"Idempotency-Key": "the-same"}
    first = ask(shared, "anna", "POST", "/generate", json=SMALL, headers=headers).json()["id"]
    second = ask(shared, "bert", "POST", "/generate", json={**SMALL, "steps": 3}, headers=headers)
    assert (second.status_code, "idempotent-replay" in second.headers) == (200, False)
    assert second.json()["id"] != first
    again = ask(shared, "anna", "POST", "/generate", json=SMALL, headers=headers)
    assert again.json()["id"] == first


def test_nobody_overwrites_the_clip_of_another(shared: Running) -> None:
    body = {**SMALL, "output": "annas.mp4"}
    made = ask(shared, "anna", "POST", "/generate", json=body).json()
    for path in ("/generate", "/estimate"):
        answer = ask(shared, "bert", "POST", path, json={**body, "overwrite": True})
        told = answer.json() if path == "/generate" else answer.json()["reason"]
        assert told["code"] == "output_exists" and made["id"] not in answer.text
    assert ask(shared, "anna", "GET", made["url"]).status_code == 200
    again = ask(shared, "anna", "POST", "/generate", json={**body, "overwrite": True})
    assert again.json()["status"] == "succeeded"

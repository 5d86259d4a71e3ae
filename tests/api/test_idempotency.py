"""One job for one key, whoever sends it how often; and keys that are none."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.server import HELD, PATIENCE, SMALL, Running, picture, running


def send(server: Running, key: str, body: dict[str, Any] | bytes, prefer: str = "", **more: Any) -> httpx2.Response:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"} | ({"Prefer": prefer} if prefer else {})
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.client.post("/generate", content=content, headers=headers, **more)


def test_the_same_request_is_answered_with_the_same_job(server: Running) -> None:
    first = send(server, "same", SMALL)
    assert "idempotent-replay" not in first.headers
    again = send(server, "same", SMALL)
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]


def test_order_of_keys_and_white_space_mean_nothing(server: Running) -> None:
    first = send(server, "spaces", SMALL).json()
    turned = json.dumps(dict(reversed(SMALL.items())), indent=3).encode()
    assert send(server, "spaces", turned).json()["id"] == first["id"]


def test_a_key_in_quotes_is_the_same_key(server: Running) -> None:
    first = send(server, "quoted", SMALL).json()
    assert send(server, '"quoted"', SMALL).json()["id"] == first["id"]


def test_another_request_under_the_key_is_refused(server: Running) -> None:
    send(server, "other", SMALL)
    answer = send(server, "other", {**SMALL, "steps": 3})
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")
    assert answer.json()["errors"][0]["field"] == "Idempotency-Key"


def test_uploads_are_part_of_the_request(server: Running) -> None:
    body = json.dumps({**SMALL, "first_frame": {"upload": "a"}})

    def upload(data: bytes) -> httpx2.Response:
        files = {"request": (None, body), "a": ("a", data)}
        return server.client.post("/generate", files=files, headers={"Idempotency-Key": "uploads"})

    first = upload(picture(64, 64))
    assert upload(picture(64, 64)).json()["id"] == first.json()["id"]
    assert upload(picture(96, 64)).json()["code"] == "idempotency_mismatch"
    assert send(server, "uploads", json.loads(body)).json()["code"] == "idempotency_mismatch"


def test_the_wait_of_a_replay_is_its_own(server: Running, tmp_path: Path) -> None:
    slow = {**SMALL, "prompt": f"x until={tmp_path / 'over'}"}
    first = send(server, "waits", slow, "respond-async")
    assert first.status_code == 202
    again = send(server, "waits", slow, "respond-async")
    assert (again.status_code, again.headers["idempotent-replay"]) == (202, "true")
    (tmp_path / "over").touch()
    joined = send(server, "waits", slow)
    assert (joined.status_code, joined.json()["id"]) == (200, first.json()["id"])


def test_many_at_once_make_one_job(server: Running) -> None:
    found: list[httpx2.Response] = []

    def post() -> None:
        headers = {"Idempotency-Key": "race"}
        found.append(httpx2.post(f"{server.url}/generate", json=SMALL, headers=headers, timeout=PATIENCE))

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.json()["id"] for answer in found}) == 1
    assert sum("idempotent-replay" in answer.headers for answer in found) == 7
    assert server.service._turns._locks == {}


def test_a_refused_request_leaves_its_key_free(server: Running) -> None:
    assert send(server, "free", {**SMALL, "steps": 0}).status_code == 422
    assert "idempotent-replay" not in send(server, "free", SMALL).headers


def test_a_deleted_job_leaves_its_key_free(server: Running) -> None:
    first = send(server, "deleted", SMALL).json()
    assert server.client.delete(f"/jobs/{first['id']}").status_code == 200
    assert send(server, "deleted", {**SMALL, "steps": 3}).json()["id"] != first["id"]


def test_a_full_queue_still_answers_what_it_has_taken(tmp_path: Path) -> None:
    slow = HELD
    with running(tmp_path, queue_limit=1) as server:
        jobs = [send(server, str(number), slow, "respond-async").json()["id"] for number in range(2)]
        assert send(server, "new", slow, "respond-async").json()["code"] == "queue_full"
        assert send(server, "1", slow, "respond-async").json()["id"] == jobs[1]


@pytest.mark.parametrize("key", ["", "x" * 256, '""', "schl\xfcssel", "a\tb"])
def test_what_is_no_key_is_refused(server: Running, key: str) -> None:
    headers = [(b"Idempotency-Key", key.encode("latin-1")), (b"Content-Type", b"application/json")]
    answer = server.client.post("/generate", content=json.dumps(SMALL), headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Idempotency-Key")


def test_two_keys_are_none(server: Running) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert server.client.post("/generate", json=SMALL, headers=headers).status_code == 422


@pytest.mark.parametrize("key", ["x", "x" * 255, "a b", "!~", "8e03978e-40d5-43e8-bc93-6894a57f9324"])
def test_any_plain_text_is_a_key(server: Running, key: str) -> None:
    assert send(server, key, SMALL).status_code == 200

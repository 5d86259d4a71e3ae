"""Bodies that can't be read, and bodies that are too large: each one problem, none of them harms the next request."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.api.server import PATIENCE, SMALL, Running, picture, running, until

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with small limits."""
    with running(tmp_path_factory.mktemp("tight"), max_json_bytes=2000, max_upload_bytes=200_000) as found:
        yield found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'prompt': 'x'}",
        b'{"prompt": "x",}',
        b'{"prompt": "x"} x',
        b"\xff\xfe{\x00",
        b'{"prompt": "\xe9"}',
        b"[" * 100_000,
        *(b'{"prompt": "x", "format": ' + b"[" * deep + b"]" * deep + b"}" for deep in (40, 500, 900)),
        *(b'{"prompt": "x", "format": ' + b'{"a": ' * deep + b"null" + b"}" * deep + b"}" for deep in (40, 500, 900)),
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "\\udfff": 1}',
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "x", "format": {"crf": 1, "crf": 2}}',
    ],
)
def test_what_is_not_json_is_malformed(server: Running, body: bytes) -> None:
    answer = server.post(content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_request")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"1", b"null"])
def test_json_that_is_no_object_is_invalid(server: Running, body: bytes) -> None:
    assert server.post(content=body, headers=JSON).status_code == 422


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "image/png", "", "x"])
def test_other_content_types_are_refused(server: Running, kind: str) -> None:
    answer = server.post(content=json.dumps(SMALL), headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "media_type")


def test_a_compressed_body_is_refused_by_name(server: Running) -> None:
    answer = server.post(content=b"\x1f\x8b", headers={**JSON, "Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, "media_type") and "gzip" in answer.text


def test_another_charset_is_refused(server: Running) -> None:
    answer = server.post(content=b"{}", headers={"Content-Type": "application/json; charset=latin-1"})
    assert answer.status_code == 415
    assert server.post(
        content=json.dumps(SMALL), headers={"Content-Type": "application/json; charset=UTF-8"}
    ).is_success


BOUNDARY = "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n'


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data", b"", 400),
        (BOUNDARY, b"", 400),
        (BOUNDARY, b"nonsense", 400),
        (BOUNDARY, PART + b'{"prompt": "x"}', 400),
        (BOUNDARY, PART + b"{\r\n--b--\r\n", 400),
        (BOUNDARY, b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n", 400),
        (BOUNDARY, b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n', 422),
        (BOUNDARY, PART + b"{}\r\n" + PART + b"{}\r\n--b--\r\n", 422),
        (BOUNDARY, b"--b\r\nX: " + b"y" * 20_000 + b"\r\n\r\nx\r\n--b--\r\n", 400),
        (BOUNDARY, b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n' * 100 + b"--b--\r\n", 400),
    ],
)
def test_a_broken_form_is_one_problem(server: Running, kind: str, body: bytes, status: int) -> None:
    answer = server.post(content=body, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_form_field_will_do_for_a_file(server: Running) -> None:
    answer = server.client.post("/generate", files={"request": ("r.json", json.dumps(SMALL))})
    assert answer.status_code == 200


def test_a_large_json_is_refused(tight: Running) -> None:
    answer = tight.post({**SMALL, "prompt": "x" * 3000})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert tight.post(SMALL).status_code == 200


def test_a_large_json_is_refused_when_chunked(tight: Running) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(400):
            yield b"x" * 10_000
        yield b'"}'

    answer = tight.post(content=body(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_a_large_upload_is_refused_and_leaves_nothing(tight: Running) -> None:
    media = json.dumps({**SMALL, "first_frame": {"upload": "a"}})
    noise = bytes(range(256)) * 1200
    answer = tight.client.post("/generate", files={"request": (None, media), "a": ("a", noise)})
    assert answer.status_code == 413
    assert list(tight.service.folders.tmp.iterdir()) == []
    fits = tight.client.post("/generate", files={"request": (None, media), "a": ("a", picture(64, 64))})
    assert fits.status_code == 200


def test_the_request_part_has_the_limit_of_json(tight: Running) -> None:
    part = json.dumps({**SMALL, "prompt": "x" * 5000})
    assert tight.client.post("/generate", files={"request": (None, part)}).status_code == 413


def test_a_body_announced_too_large_is_refused_before_it_comes(tight: Running) -> None:
    host, port = tight.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
        )
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


def test_two_bad_requests_at_once_do_not_harm_a_good_one(server: Running) -> None:
    """A05, fifty times."""
    bad = {**SMALL, "seconds": 2, "frames": 81}
    for _ in range(50):
        threads = [threading.Thread(target=server.post, args=(bad,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.post(SMALL).json()["status"] == "succeeded"


def test_a_client_that_leaves_during_an_upload_leaves_nothing(server: Running) -> None:
    """A33."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 100000\r\n\r\n"
            b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n' + b"x" * 70_000
        )
    assert server.post(SMALL).json()["status"] == "succeeded"
    until(lambda: not list(server.service.folders.tmp.iterdir()))

"""What browsers are told: security headers, CORS for named origins, no to foreign pages and rebound names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator

import httpx2
import pytest

from tests.api.raw import answer_to
from tests.api.server import SMALL, Running, running

OURS, FOREIGN = "https://studio.example", "https://evil.example"
CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/142.0.0.0 Safari/537.36"
FORM = {"request": (None, json.dumps(SMALL))}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that a page of another origin may use."""
    with running(tmp_path_factory.mktemp("shared"), cors_origins=OURS + ", http://localhost:3000") as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same, with a key."""
    with running(tmp_path_factory.mktemp("guarded"), cors_origins=OURS, api_key="k") as found:
        yield found


def preflight(server: Running, origin: str, path: str = "/generate") -> httpx2.Response:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    return server.client.options(path, headers={"Origin": origin, **asked})


@pytest.mark.parametrize("path", ["/live", "/jobs", "/jobs/none", "/nothing", "/docs", "/openapi.json", "/metrics"])
def test_every_answer_has_the_security_headers(server: Running, path: str) -> None:
    headers = server.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "script-src 'self'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert "server" not in headers


def test_cors_is_off_by_default(server: Running) -> None:
    answer = server.client.get("/jobs", headers={"Origin": OURS})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    refused = preflight(server, OURS)
    assert refused.status_code == 405 and "access-control-allow-origin" not in refused.headers


def test_a_named_origin_may_read_and_send(shared: Running) -> None:
    answer = shared.client.get("/jobs", headers={"Origin": OURS})
    assert answer.headers["access-control-allow-origin"] == OURS
    for name in ("Location", "X-Request-ID", "Retry-After", "Idempotent-Replay", "ETag", "Content-Range"):
        assert name in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    assert "Origin" in answer.headers["vary"]
    allowed = preflight(shared, OURS)
    assert allowed.status_code == 204 and allowed.content == b""
    assert allowed.headers["access-control-allow-origin"] == OURS
    for name in ("authorization", "content-type", "prefer", "idempotency-key", "last-event-id", "x-request-id"):
        assert name in allowed.headers["access-control-allow-headers"]
    assert "DELETE" in allowed.headers["access-control-allow-methods"]
    sent = shared.client.post("/generate", files=FORM, headers={"Origin": OURS, "Sec-Fetch-Site": "cross-site"})
    assert sent.status_code == 200


@pytest.mark.parametrize(
    "origin", [FOREIGN, OURS + ":444", "http://studio.example", OURS + ".evil.example", "null", ""]
)
def test_any_other_origin_is_not_echoed(shared: Running, origin: str) -> None:
    for answer in (shared.client.get("/jobs", headers={"Origin": origin}), preflight(shared, origin)):
        assert "access-control-allow-origin" not in answer.headers
        assert "Origin" in answer.headers["vary"]


def test_a_preflight_needs_no_key_but_its_request_does(guarded: Running) -> None:
    assert preflight(guarded, OURS).status_code == 204
    assert preflight(guarded, FOREIGN).status_code == 401
    refused = guarded.client.get("/jobs", headers={"Origin": OURS})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, OURS)
    read = guarded.client.get("/jobs", headers={"Origin": OURS, "Authorization": "Bearer k"})
    assert (read.status_code, read.headers["access-control-allow-origin"]) == (200, OURS)


@pytest.mark.parametrize(
    "marks",
    [
        {"Origin": FOREIGN},
        {"Origin": "null"},
        {"Origin": FOREIGN, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:9999"},
    ],
)
def test_a_foreign_page_cannot_make_a_browser_submit(server: Running, marks: dict[str, str]) -> None:
    before = server.client.get("/jobs").json()["data"][:1]
    for path in ("/generate", "/jobs/x/cancel", "/v1/videos"):
        answer = server.client.post(path, files=FORM, headers=marks)
        assert answer.status_code == 401
    assert server.client.delete("/jobs/x", headers=marks).status_code == 401
    assert server.client.get("/jobs").json()["data"][:1] == before
    # Reading is left to CORS, which lets no foreign page see it.
    assert server.client.get("/live", headers=marks).status_code == 200


def test_our_own_page_and_programs_may_submit(server: Running) -> None:
    host = server.url.removeprefix("http://")
    for marks in (
        {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
        {"Origin": server.url},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"},
        {"Host": host},
        {},
    ):
        assert server.client.post("/generate", files=FORM, headers=marks).status_code == 200, marks


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8001", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_rebound_name_is_no_host_of_a_browser(server: Running, host: str) -> None:
    for marks in (f"User-Agent: {CHROME}", f"Origin: http://{host}", "Sec-Fetch-Site: same-origin"):
        request = f"GET /jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{marks}\r\n\r\n"
        answer = answer_to(server.url, request.encode())
        assert answer.startswith(b"HTTP/1.1 400 ") and b"malformed_request" in answer, marks
    # A program's `Host` may be anything, a proxy's for one.
    program = answer_to(server.url, f"GET /jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert program.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:1", "[::1]:8001", "LOCALHOST"])
def test_loopback_has_several_names(server: Running, host: str) -> None:
    request = f"GET /live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nUser-Agent: {CHROME}\r\n\r\n"
    assert answer_to(server.url, request.encode()).startswith(b"HTTP/1.1 200 ")


def test_a_proxys_name_is_listed_as_an_origin(shared: Running) -> None:
    request = f"GET /live HTTP/1.1\r\nHost: studio.example\r\nConnection: close\r\nUser-Agent: {CHROME}\r\n\r\n"
    assert answer_to(shared.url, request.encode()).startswith(b"HTTP/1.1 200 ")


def test_docs_work_offline_and_without_scripts(server: Running) -> None:
    answer = server.client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    page = answer.text
    assert not re.search(r'<(?:script|link|img|iframe)\b|\bsrc=|\bon\w+="|style="|href="(?!#|/openapi)', page)
    for path, item in server.client.get("/openapi.json").json()["paths"].items():
        for method in item:
            assert f"{method.upper()} {path}" in page
    for field in ("prompt", "first_frame", "references", "audio_shift", "keyframes"):
        assert f"<code>{field}</code>" in page
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert len(style) == 1 and f"style-src 'sha256-{digest}'" in answer.headers["content-security-policy"]

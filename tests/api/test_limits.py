"""Clients that are slow, many, large or odd: nothing is left of them, and probes still answer."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from h3runtime.api import connections, limits
from h3runtime.api.limits import BodyLimit, Submissions
from h3runtime.errors import RateLimited
from tests.api.raw import answer_to, connect, rest_of
from tests.api.server import HELD, SMALL, Running, running, until

QUICK = 1.0
SOON = 20.0
"""Less than anything else that could end a connection: 30 s for a head or a body, 75 s of idling."""
FORM = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
JSON = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PART = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n'


@pytest.fixture(scope="module", autouse=True)
def short_partings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "LINGER_SECONDS", QUICK)
        patch.setattr(limits, "LINGER_SECONDS", QUICK)
        yield


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that waits for nobody. What must be served is asked of another one: this machine may be slow too."""
    with running(tmp_path_factory.mktemp("hasty"), read_seconds=QUICK) as found:
        yield found


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with room for 16 connections and small bodies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "MAX_CONNECTIONS", 16)
        with running(tmp_path_factory.mktemp("narrow"), max_json_bytes=20_000) as found:
            yield found


def problem_in(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head and b"x-request-id" in head.lower(), answer
    told = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
    return int(head.split(b" ", 2)[1]), told["code"]


def until_no_uploads(server: Running) -> None:
    until(lambda: not list(server.service.folders.tmp.iterdir()))


def answers_to(url: str, *told: bytes) -> list[bytes]:
    """As `answer_to` each, all at once."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(url)) for _ in told]
        for client, data in zip(clients, told, strict=True):
            client.sendall(data)
        return [rest_of(client) for client in clients]


def test_a_body_that_stalls_is_ended(hasty: Running) -> None:
    began = time.monotonic()
    answers = answers_to(
        hasty.url,
        JSON + b"Content-Length: 100\r\n\r\n",
        JSON + b'Content-Length: 100\r\n\r\n{"prompt": "x"',
        JSON + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{    \r\n",
        FORM + b"Content-Length: 200000\r\n\r\n" + PART + b"x" * 70_000,
    )
    for answer in answers:
        assert problem_in(answer) == (400, "malformed_request")
        assert b"in 1 s" in answer and b"connection: close" in answer.lower()
    assert QUICK <= time.monotonic() - began < SOON
    until_no_uploads(hasty)


def test_a_body_that_drips_is_ended(hasty: Running) -> None:
    with connect(hasty.url) as client:
        client.sendall(JSON + b"Content-Length: 1000\r\n\r\n")
        assert dripped(client, b" ").startswith(b"HTTP/1.1 400 ")


def dripped(client: socket.socket, drop: bytes) -> bytes:
    """The answer that ends what would go on for ever."""
    client.settimeout(0.05)
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        # We may be late for it, but not for its answer.
        with suppress(OSError):
            client.sendall(drop)
        with suppress(TimeoutError):
            return client.recv(65536)
    pytest.fail("it went on")


def test_a_slow_upload_that_goes_on_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times as long as a silence may be, by a clock of its own: this machine's pace is nobody's business."""
    now, sent, pieces = 0.0, [], iter(range(10))
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now))

    async def receive() -> dict[str, Any]:
        nonlocal now
        now += 15.0
        return {"type": "http.request", "body": b"x" * limits.LEAST_BYTES, "more_body": next(pieces) < 9}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def read(scope: Any, receive: Any, send: Any) -> None:
        body = await Request(scope, receive).body()
        await Response(str(len(body)))(scope, receive, send)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(BodyLimit(read, 10**6, 10**6, 30.0)(scope, receive, send))
    assert (sent[0]["status"], sent[1]["body"]) == (200, str(10 * limits.LEAST_BYTES).encode())
    assert now == 150.0


def test_a_client_that_waits_for_its_job_is_not_silent(hasty: Running) -> None:
    """Its body is complete; however long the answer takes, nothing more is expected of it."""
    answer = hasty.post({**SMALL, "prompt": f"x step_seconds={0.8 * QUICK}"})
    assert answer.json()["status"] == "succeeded"


def test_a_head_that_never_ends_is_ended_and_silence_in_silence(hasty: Running) -> None:
    heads = [b"G", b"GET /live HTTP/1.1\r\nHost: x\r\n", b"GET /live HTTP/1.1\r\nX: " + b"y" * 1000]
    began = time.monotonic()
    *answers, silence = answers_to(hasty.url, *heads, b"")
    for answer in answers:
        assert problem_in(answer) == (400, "malformed_request")
    assert silence == b""
    assert QUICK <= time.monotonic() - began < SOON


def test_a_head_that_drips_is_ended(hasty: Running) -> None:
    with connect(hasty.url) as client:
        client.sendall(b"GET /live HTTP/1.1\r\n")
        assert dripped(client, b"X: y\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_body_that_nobody_reads_does_not_hold_the_connection(hasty: Running) -> None:
    began = time.monotonic()
    answer = answer_to(hasty.url, b"POST /jobs/x/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
    assert answer.startswith(b"HTTP/1.1 404 ") and time.monotonic() - began < SOON


def answered(client: socket.socket) -> int:
    """The status of the next answer, which is read to its end."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


def test_bodies_that_come_after_their_answer_do_not_end_a_later_request(server: Running) -> None:
    """The end of one body and the head of the next request come in one piece, twice answered before the body."""
    early = b"POST /jobs/x/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
    slow = json.dumps({**SMALL, "prompt": f"x step_seconds={0.75 * QUICK}"}).encode()
    with connect(server.url) as client:
        client.sendall(early)
        assert answered(client) == 404
        client.sendall(b"{}" + early)
        assert answered(client) == 404
        client.sendall(b"{}" + JSON + f"Content-Length: {len(slow)}\r\n\r\n".encode() + slow)
        assert answered(client) == 200


def test_a_connection_whose_last_body_came_late_idles_like_any_other(hasty: Running) -> None:
    """`hasty` gives a head 1 s, an idle connection 75 s."""
    with connect(hasty.url) as client:
        client.sendall(b"POST /jobs/x/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
        assert answered(client) == 404
        client.sendall(b"{}")
        time.sleep(1.5 * QUICK)
        client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answered(client) == 200


def test_idle_clients_make_room_for_new_ones(narrow: Running) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(narrow.url)) for _ in range(60)]
        began = time.monotonic()
        answer = answer_to(narrow.url, b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ") and time.monotonic() - began < SOON
        assert rest_of(idle[0]) == b""


def test_a_client_may_come_back_after_the_five_seconds_that_most_keep_a_connection(server: Running) -> None:
    with connect(server.url) as held:
        client = http.client.HTTPConnection("x")
        client.sock = held
        for pause in (0, 6):
            time.sleep(pause)
            client.request("GET", "/live")
            answer = client.getresponse()
            assert (answer.status, answer.read()[:1]) == (200, b"{")
            assert client.sock is held


def test_without_any_idle_one_a_new_client_is_told(narrow: Running) -> None:
    body = json.dumps(HELD).encode()
    with ExitStack() as stack:
        for _ in range(16):
            client = stack.enter_context(connect(narrow.url))
            client.sendall(JSON + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: narrow.service.queue.waiting == 15)
        answer = answer_to(narrow.url, b"")
        assert problem_in(answer) == (429, "rate_limited") and b"retry-after" in answer.lower()
    for job in narrow.client.get("/jobs", params={"limit": 100}).json()["data"]:
        narrow.client.post(f"/jobs/{job['id']}/cancel")
        narrow.wait(job["id"])


def test_two_hundred_stalled_clients_do_not_keep_probes_waiting(server: Running) -> None:
    """Idle, in the middle of a head, in the middle of an upload."""
    stalls = [b"", b"GET /li", FORM + b"Content-Length: 200000\r\n\r\n" + PART + b"x" * 5000, JSON[:-2]]
    with ExitStack() as stack:
        for number in range(200):
            stack.enter_context(connect(server.url)).sendall(stalls[number % len(stalls)])
        waits = []
        for _ in range(40):
            began = time.monotonic()
            assert server.client.get("/live").status_code == 200
            waits.append(time.monotonic() - began)
        # The middle one: a busy machine may hold up any of them.
        assert sorted(waits)[20] < 0.25 and max(waits) < SOON
    until_no_uploads(server)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /live HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 60_000 + b"\r\nConnection: close\r\n\r\n", 200),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2**20 + b"\r\n\r\n", 400),
        (b"GET /live HTTP/1.0\r\n\r\n", 200),
        (b"GET http://other/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"GET http://other?x=/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"GET /live HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60 + b"\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET /jobs/%ff%fe%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n", 200),
        (JSON + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ", 400),
        (JSON + b"Content-Length: -5\r\n\r\n{}", 400),
        (JSON + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        (JSON + b"Content-Length: 99999999999999\r\n\r\n", 413),
        (JSON + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (JSON + b"Transfer-Encoding: chunked\r\n\r\n" + b"2710\r\n" + b"x" * 10_000 + b"\r\n" + b"zz\r\n", 400),
        (JSON + b"Transfer-Encoding: chunked\r\n\r\n" + (b"2710\r\n" + b"x" * 10_000 + b"\r\n") * 3, 413),
    ],
)
def test_odd_requests_get_one_answer(narrow: Running, request_bytes: bytes, status: int) -> None:
    answer = answer_to(narrow.url, request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    if status >= 400:
        assert problem_in(answer)[0] == status


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    ask = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answers = answer_to(server.url, ask % b"live" + ask % b"none" + ask % b"live" + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"404", b"200", b"200"]


def test_a_client_that_asks_first_is_told_to_go_on(server: Running) -> None:
    body = json.dumps(SMALL).encode()
    with connect(server.url) as client:
        client.sendall(JSON + b"Expect: 100-continue\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        assert rest_of(client).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_sends_less_than_announced_and_leaves(server: Running) -> None:
    with connect(server.url) as client:
        client.sendall(JSON + b"Content-Length: 100\r\n\r\n{}")
        client.shutdown(socket.SHUT_WR)
        rest_of(client)
    assert server.post(SMALL).json()["status"] == "succeeded"


def test_an_owner_has_a_share_of_what_is_read_at_once() -> None:
    submissions = Submissions(2)
    with submissions.of("a"), submissions.of("a"):
        with pytest.raises(RateLimited, match="2 requests"), submissions.of("a"):
            pytest.fail("a third was let in")
        with submissions.of("b"):
            pass
    with submissions.of("a"), pytest.raises(KeyError), submissions.of("a"):
        raise KeyError
    with submissions.of("a"), submissions.of("a"):
        pass


def test_shares_are_counted_across_threads() -> None:
    submissions = Submissions(8)
    refused = []

    def submit() -> None:
        for _ in range(500):
            try:
                with submissions.of("a"):
                    pass
            except RateLimited:
                refused.append(1)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not refused and not submissions._held


def test_one_request_too_many_at_once_is_429(server: Running) -> None:
    submissions = Submissions(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.service, "submissions", submissions)
        with submissions.of(""):
            answer = server.post(SMALL)
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert int(answer.headers["retry-after"]) > 0
        assert server.post(SMALL).status_code == 200

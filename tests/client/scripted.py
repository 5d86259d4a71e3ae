"""A server that plays a script: what each request in turn is answered, cut off or kept waiting for.

For what a client must survive and a real server won't do when asked: connections that break in the middle, streams that
come without their end, answers that lie. What was asked is kept.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Say:
    """One answer. cut: close before the announced length is there. reads: take the request's body first."""

    body: bytes | dict[str, Any] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    reads: bool = True


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    answers: list[Say]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


def stream(*lines: str) -> Say:
    """An event stream that ends after these lines."""
    return Say("".join(f"{line}\n" for line in lines).encode(), headers={"Content-Type": "text/event-stream"})


def event(kind: str, number: int, **data: Any) -> str:
    return f"event: {kind}\nid: {number}\ndata: {json.dumps(data)}\n"


@contextmanager
def scripted(*answers: Say) -> Iterator[Script]:
    """Answers in order; one more request than there are answers is closed on."""
    script = Script(list(answers))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            with suppress(ConnectionError):
                super().handle_one_request()
            self.close_connection = True

        def do_GET(self) -> None:
            say = script.answers.pop(0) if script.answers else None
            length = int(self.headers.get("content-length", 0))
            body = self.rfile.read(length) if say is None or say.reads else b""
            told = {name.lower(): value for name, value in self.headers.items()}
            script.asked.append(Asked(self.command, self.path, told, body))
            if say is not None:
                self._answer(say)

        do_POST = do_DELETE = do_GET  # noqa: N815

        def _answer(self, say: Say) -> None:
            body = say.body if isinstance(say.body, bytes) else json.dumps(say.body).encode()
            self.send_response(say.status)
            for name, value in say.headers.items():
                self.send_header(name, value)
            if say.headers.get("Content-Type") != "text/event-stream":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if say.cut is None else body[: say.cut])

        def log_message(self, *_: Any) -> None:
            pass

    return Handler

"""Clients that go at any moment or stall, a callback whose host is down, a log that nobody reads."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from tests.faults.case import Case, named
from tests.faults.place import Place, listing
from tests.faults.service import PATIENCE, SMALL, Service, look


def client_gone(place: Place, stage: str) -> None:
    """A blocking client that closes its connection loses the answer, not the job."""
    server = place.serve()
    held = _ask_and_go(server, SMALL | {"prompt": f"hold={stage}"}, lambda: _running(server, stage))
    place.expect(held)
    place.open_gate()
    assert server.wait(held)["status"] == "succeeded"
    assert server.wait(place.submit())["status"] == "succeeded"


def client_gone_while_waiting(place: Place) -> None:
    server = place.serve()
    first = place.submit(prompt="hold=sampling")
    server.wait_stage(first, "sampling")
    place.expect(_ask_and_go(server, SMALL | {"seed": 8}, lambda: _newest(server, "queued")))


def client_gone_at_the_end(place: Place) -> None:
    """The answer and the client's end meet: whoever tells of a job's end is not brought down by one who left."""
    server = place.serve()
    for number in range(10):
        body = SMALL | {"seed": number, "prompt": "pause=0.005"}
        with suppress(httpx2.TimeoutException):
            httpx2.post(f"{server.url}/generate", json=body, timeout=0.02 + 0.02 * number)
    for job in server.client.get("/jobs").json()["data"]:
        place.expect(job["id"])
    assert server.wait(place.submit())["status"] == "succeeded"


def client_gone_while_uploading(place: Place) -> None:
    """Half an upload is no job, and nothing of it is left."""
    server = place.serve()
    for part in (0.0, 0.5, 0.999):
        with _connection(server) as connection:
            message = _form(SMALL | {"first_frame": {"upload": "a"}}, {"a": os.urandom(1 << 20)})
            connection.sendall(message[: int(len(message) * part)])
            time.sleep(0.05)
    look(lambda: not any((place.data / "tmp").iterdir()))
    assert {job["id"] for job in listing(server.client)} <= set(place.may_end)
    assert server.wait(place.submit())["status"] == "succeeded"


def client_gone_while_judged(place: Place) -> None:
    """All of it has come, and the client is gone before it is a job: it becomes one, or nothing is left of it."""
    server = place.serve()
    clip = _long_clip(place)
    body = SMALL | {"task": "ref2va", "references": [{"type": "video", "source": {"upload": "a"}}]}
    with _connection(server) as connection:
        connection.sendall(_form(body, {"a": clip}))
        time.sleep(0.1)
    time.sleep(0.5)
    assert server.wait(place.submit())["status"] == "succeeded"
    look(lambda: not any((place.data / "tmp").iterdir()))


def client_gone_while_it_is_told(place: Place) -> None:
    """Streams that are left in the middle don't keep a thread, a file or a place in the line."""
    server = place.serve()
    held = place.submit(prompt="hold=sampling")
    server.wait_stage(held, "sampling")
    threads, files = _threads(server.pid), _open_files(server.pid)
    for _ in range(20):
        with _connection(server) as connection:
            connection.sendall(f"GET /jobs/{held}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert connection.recv(100)
    look(lambda: _open_files(server.pid) <= files + 1)
    # Whoever serves several at once may have begun some that stay for the next; one for each stream would be twenty.
    assert _threads(server.pid) <= threads + 10
    place.open_gate()
    assert server.wait(held)["status"] == "succeeded"


def client_gone_while_fetching(place: Place) -> None:
    """Half a download, twenty times; the clip is as it was."""
    server = place.serve()
    job = server.wait(place.submit(width=512, height=512, frames=22, format={"crf": 0}))
    for _ in range(20):
        with _connection(server) as connection:
            connection.sendall(f"GET {job['url']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            connection.recv(1000)
    assert hashlib.sha256(server.client.get(job["url"]).content).hexdigest() == job["sha256"]


def upload_stalls(place: Place) -> None:
    """A client that stops sending holds nobody up, is let go, and leaves nothing."""
    server = place.serve(read_seconds=2)
    with _connection(server) as connection:
        message = _form(SMALL | {"first_frame": {"upload": "a"}}, {"a": os.urandom(1 << 18)})
        connection.sendall(message[:100_000])
        assert server.wait(place.submit())["status"] == "succeeded"
        began = time.monotonic()
        with suppress(ConnectionError):
            while connection.recv(4096):
                pass
        # It is given two seconds, anybody else half a minute.
        assert time.monotonic() - began < 25
    look(lambda: not any((place.data / "tmp").iterdir()))


def callback_host_down(place: Place) -> None:
    """Nobody listens where the end is to be told: the job is done all the same, and the server goes when asked."""
    secret = place.folder / "secret"
    secret.write_bytes(b"s" * 32)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    server = place.serve(callback_allow="127.0.0.1", callback_secret_file=secret)
    job = place.submit(callback_url=f"http://127.0.0.1:{port}/done")
    assert server.wait(job)["status"] == "succeeded"
    assert server.wait(place.submit())["status"] == "succeeded"
    assert server.stop() == 0
    place.serve(callback_allow="127.0.0.1", callback_secret_file=secret)


def log_reader_gone(place: Place) -> None:
    """Whoever read standard output has closed it: jobs are made, and the server goes with 0 when asked."""
    when = place.folder / "nobody-reads"
    server = place.serve(sabotaged=("lose_reader_of_log", str(when)))
    server.url  # noqa: B018  # told by the log, while it is read
    when.touch()
    look(lambda: not when.exists())
    assert server.wait(place.submit())["status"] == "succeeded"
    assert server.stop() == 0
    place.serve()


def families() -> Mapping[str, Mapping[str, Case]]:
    gone = {f"client_gone_in_{stage}": partial(client_gone, stage=stage) for stage in ("sampling", "mux")}
    return {
        "clients": gone
        | named(
            client_gone_while_waiting,
            client_gone_at_the_end,
            client_gone_while_uploading,
            client_gone_while_judged,
            client_gone_while_it_is_told,
            client_gone_while_fetching,
            upload_stalls,
            callback_host_down,
            log_reader_gone,
        ),
    }


def _running(server: Service, stage: str) -> str | None:
    jobs = server.client.get("/jobs").json()["data"]
    return next((job["id"] for job in jobs if job["progress"]["stage"] == stage), None)


def _newest(server: Service, status: str) -> str | None:
    jobs = server.client.get("/jobs").json()["data"]
    return next((job["id"] for job in jobs if job["status"] == status), None)


def _connection(server: Service) -> socket.socket:
    found = urlsplit(server.url)
    return socket.create_connection((found.hostname or "", found.port or 0), timeout=PATIENCE)


def _ask_and_go(server: Service, body: Mapping[str, Any], until: Callable[[], str | None]) -> str:
    """A blocking request whose client goes when `until` finds the job."""
    data = json.dumps(body).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with _connection(server) as connection:
        connection.sendall(head.encode() + data)
        return str(look(until))


def _form(body: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """A whole multipart request, head and body."""
    parts = [(b'name="request"', b"application/json", json.dumps(body).encode())]
    parts += [(f'name="{n}"; filename="{n}"'.encode(), b"application/octet-stream", data) for n, data in files.items()]
    data = b"".join(
        b"--B\r\nContent-Disposition: form-data; " + name + b"\r\nContent-Type: " + kind + b"\r\n\r\n" + held + b"\r\n"
        for name, kind, held in parts
    )
    data += b"--B--\r\n"
    kind = "multipart/form-data; boundary=B"
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _long_clip(place: Place) -> bytes:
    """Ten seconds that take a while to be decoded."""
    path = place.folder / "long.mp4"
    source = ["-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=24:duration=4"]
    command = ["ffmpeg", "-v", "error", *source, "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"]
    subprocess.run([*command, str(path)], check=True)
    return path.read_bytes()


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))

"""`serve` as a process: its log, its signals, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from h3runtime.api.admission import Admission
from h3runtime.api.app import create_app
from h3runtime.api.serve import _listen, _Server, tls_context
from h3runtime.api.service import Service
from h3runtime.errors import SettingsError
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.jobs.files import Folders
from h3runtime.settings import Settings
from tests.api.inputs.test_fetching import CERTIFICATE, KEY
from tests.api.raw import connect, rest_of
from tests.api.served import children_of, served
from tests.api.server import HELD, PATIENCE, SMALL, running, until


def is_gone(pid: int) -> bool:
    def state() -> str:
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return "Z"

    return bool(until(lambda: state() == "Z"))


def test_sigterm_lets_the_running_job_finish_and_ends_with_0(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        engine = server.engine_pid()
        answer = server.in_background(prompt=f"x until={tmp_path / 'over'}")
        waiting = server.client.post("/generate", json=SMALL, headers={"Prefer": "respond-async"}).json()["id"]
        server.signal(signal.SIGTERM)
        server.wait_event("draining")
        state = server.client.get("/ready")
        assert (state.status_code, state.json()["status"]) == (503, "draining")
        assert server.client.get("/live").status_code == 200
        refused = server.client.post("/generate", json=SMALL)
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        kept = server.client.get(f"/jobs/{waiting}").json()
        assert (kept["status"], kept["error"]) == ("queued", None)
        (tmp_path / "over").touch()
        assert server.wait(PATIENCE) == 0
        assert answer.result(PATIENCE).json()["status"] == "succeeded"
        assert is_gone(engine)
        assert server.err.read_text() == ""
    events = {line["event"] for line in server.log}
    assert {"listening", "generate_start", "generate_complete", "draining", "stopped"} <= events
    done = server.wait_event("generate_complete")
    assert {"job_id", "output", "seed", "attention", "linear", "width", "height", "frames", "timings"} <= done.keys()
    assert "until=" not in json.dumps(server.log)


def test_a_terminal_that_closes_lets_the_running_job_finish(tmp_path: Path) -> None:
    """SIGHUP, more than once: from the terminal, from the shell, and at the shell's end."""
    with served(tmp_path) as server:
        answer = server.in_background(prompt=f"x until={tmp_path / 'over'}")
        server.signal(signal.SIGHUP)
        assert server.wait_event("draining")["signal"] == "SIGHUP"
        server.signal(signal.SIGHUP)
        (tmp_path / "over").touch()
        assert server.wait(PATIENCE) == 0
        assert answer.result(PATIENCE).json()["status"] == "succeeded"


def test_nohup_keeps_serving(tmp_path: Path) -> None:
    service = Service(Settings(data_dir=tmp_path), EngineRecipe("tests.fake_engine:create"))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _Server(service).capture_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        service.close()


def test_sigterm_puts_a_job_that_takes_too_long_back_into_line(tmp_path: Path) -> None:
    with served(tmp_path, drain=0.2) as server:
        answer = server.in_background(prompt="x hold")
        server.signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        assert (answer.result(PATIENCE).status_code, answer.result().json()["status"]) == (202, "queued")
        assert list((tmp_path / "outputs").iterdir()) == []
        assert list((tmp_path / "tmp").iterdir()) == []


def test_sigterm_kills_a_job_that_hears_nothing(tmp_path: Path) -> None:
    with served(tmp_path, drain=0.1) as server:
        engine = server.engine_pid()
        answer = server.in_background(prompt="x hang_at=sampling")
        server.signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        assert (answer.result(PATIENCE).status_code, answer.result().json()["status"]) == (202, "queued")
        assert is_gone(engine)


def test_sigterm_waits_for_no_client(tmp_path: Path) -> None:
    """Streams, a stalled upload, a stalled head and an idle connection are left open. Anybody may reach the server."""
    with served(tmp_path, drain=1.0, host="0.0.0.0") as server, ExitStack() as stack:
        assert server.wait_event("exposed")["message"] in server.client.get("/ready").json()["warnings"]
        url = str(server.client.base_url).rstrip("/")
        job = server.client.post("/generate", json=HELD, headers={"Prefer": "respond-async"}).json()["id"]
        upload = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        part = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n' + b"x" * 70_000
        events = f"GET /jobs/{job}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        clients = [stack.enter_context(connect(url)) for _ in range(5)]
        for client, data in zip(
            clients, [events, upload + b"Content-Length: 200000\r\n\r\n" + part, b"GET /li", b"", events], strict=True
        ):
            client.sendall(data)
        seen = b""
        while b"event: state" not in seen:
            seen += clients[0].recv(65536)
        server.signal(signal.SIGTERM)
        began = time.monotonic()
        assert b"retry: " in rest_of(clients[0])
        assert server.wait(PATIENCE) == 0
        # What an operator is promised, and a fifth of what the upload would be waited for.
        assert time.monotonic() - began < 1.0 + 15
        assert server.err.read_text() == ""
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        engine = server.engine_pid()
        job = {**SMALL, "prompt": "x orphan_at=sampling"}
        server.client.post("/generate", json=job, headers={"Prefer": "respond-async"})
        server.wait_event("generate_start")
        # What an encoder is to the engine.
        below = until(lambda: children_of(engine))
        server.signal(signal.SIGINT)
        server.wait_event("draining")
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 128 + signal.SIGTERM
        # Its drain would have taken 20 s.
        assert time.monotonic() - began < 10
        assert is_gone(engine) and all(is_gone(child) for child in below)


def test_a_killed_server_takes_its_engine_along(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        engine = server.engine_pid()
        job = {**SMALL, "prompt": "x hang_at=sampling"}
        server.client.post("/generate", json=job, headers={"Prefer": "respond-async"})
        server.wait_event("generate_start")
        server.signal(signal.SIGKILL)
        assert is_gone(engine)
    left = list((tmp_path / "tmp").iterdir())
    assert len(left) == 1
    service = Service(Settings(data_dir=tmp_path), EngineRecipe("tests.fake_engine:create"))
    assert list(service.folders.tmp.iterdir()) == []
    service.close()


def test_it_speaks_tls_asks_for_keys_and_logs_prompts_if_told_to(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    settings = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem", "api_key": "a-secret-key"}
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with served(tmp_path / "data", tls=trusted, log_prompts=True, **settings) as server:
        url = server.wait_event("listening")["url"]
        assert url.startswith("https://")
        port = int(url.rpartition(":")[2])
        server.client.base_url = f"https://localhost:{port}"
        # Somebody who speaks plain HTTP, and somebody who says nothing.
        for data in (b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
                client.sendall(data)
        assert server.client.get("/jobs").status_code == 401
        assert server.client.get("/jobs", headers={"Authorization": "Bearer wrong-secret-key"}).status_code == 401
        server.client.headers["Authorization"] = "Bearer a-secret-key"
        job = server.client.post("/generate", json={**SMALL, "prompt": "a purple walrus"})
        assert job.json()["status"] == "succeeded"
        server.signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert "secret-key" not in json.dumps(server.log)
    told = [line for line in server.log if "purple walrus" in json.dumps(line)]
    assert told and all(line["level"] == "debug" for line in told)


def test_a_certificate_that_cannot_be_used_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text("nonsense")
    for key in ("key.pem", "missing.pem"):
        settings = Settings(data_dir=tmp_path, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / key)
        with pytest.raises(SettingsError, match="H3_TLS_CERT"):
            tls_context(settings)
    assert tls_context(Settings(data_dir=tmp_path)) is None


def test_a_drain_that_hangs_ends_in_time_all_the_same(tmp_path: Path) -> None:
    with served(tmp_path, drain=0.1, hanging=True) as server:
        engine = server.engine_pid()
        server.signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.wait(PATIENCE) == 0
        # Its drain would have hung for a minute.
        assert time.monotonic() - began < 20
        assert is_gone(engine)
    server.wait_event("ended_late")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_before_anything_is_there_ends_well(tmp_path: Path, number: signal.Signals) -> None:
    """While the command still imports what it serves with, and where an exception would be dropped."""
    drops = "class Drop:\n def __del__(self):\n"
    drops += f"  signal.raise_signal({int(number)})\n"
    stops = "class Stop:\n def find_spec(self, name, *_):\n"
    stops += "  if name == 'h3runtime.api.serve': Drop(); print('it went on')\n"
    runs = (
        f"signal.signal(signal.SIGHUP, 0)\nsys.exit(main(['serve', '--data-dir', {str(tmp_path)!r}, '--port', '-1']))"
    )
    begins = "import signal, sys\nfrom h3runtime.__main__ import main\n"
    code = f"{begins}{drops}\n{stops}\nsys.meta_path.insert(0, Stop())\n{runs}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert not (tmp_path / "lock").exists()


def test_a_keys_file_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("nonsense")
    settings = Settings(data_dir=tmp_path / "data", api_keys_file=tmp_path / "keys", port=0)
    service = Service(settings, EngineRecipe("tests.fake_engine:create"))
    with pytest.raises(SettingsError, match=r"H3_API_KEYS_FILE: .*line 1"):
        create_app(service)
    service.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid", "203.0.113.7"])
def test_an_address_that_cannot_be_used_is_a_typed_error(host: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError, match=r"can't listen on .*:\d+") as raised:
            _listen(host, taken.getsockname()[1])
    assert "\n" not in raised.value.message


def test_a_second_server_on_a_data_folder_refuses(tmp_path: Path) -> None:
    first = Folders(Settings(data_dir=tmp_path))
    with pytest.raises(SettingsError, match=f"pid {os.getpid()}"):
        Folders(Settings(data_dir=tmp_path))
    first.close()
    Folders(Settings(data_dir=tmp_path)).close()


def test_a_request_whose_media_are_still_judged_is_refused_by_a_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()

    def judge_long(*_: Any) -> None:
        begun.set()
        end.wait(PATIENCE)

    monkeypatch.setattr(Admission, "admit", judge_long)
    with running(tmp_path) as server, ThreadPoolExecutor(1) as clients:
        answer = clients.submit(server.client.post, "/generate", json={"prompt": "x"})
        assert begun.wait(PATIENCE)
        server.service.queue.close()
        try:
            assert (answer.result(PATIENCE / 2).status_code, answer.result().json()["code"]) == (503, "draining")
        finally:
            end.set()


def test_a_thread_that_judges_does_not_hold_up_the_end() -> None:
    program = """
import threading, time
from h3runtime.api.serve import _abandon_threads
threading.Thread(target=time.sleep, args=(600,)).start()
print("stopped")
_abandon_threads()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "stopped\n")

"""Callbacks: who may be named, what is sent and signed, how often, and what a dead host delays."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from h3runtime.api.callbacks import FIELD, Callbacks, Patience
from h3runtime.api.signing import signature
from h3runtime.core import GenerateSpec, SamplerSettings, Task
from h3runtime.errors import NotReady, SettingsError
from h3runtime.jobs import callback_rows, job_rows
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.table import Job, JobTable, Order, Status
from h3runtime.settings import Settings
from tests.api.server import HELD, PATIENCE, SMALL, Running, running, until
from tests.jobs.test_messages import CLIP

SECRET = b"it is a secret"
QUICK = Patience(first=0.02, factor=1.0, longest=0.05, attempts=4, connect=PATIENCE, total=PATIENCE)


class Listener(BaseHTTPRequestHandler):
    """Answers by the path: `/200`, `/500/200` (one after the other), `/hang`: when `let_go` is set."""

    seen: list[tuple[str, dict[str, str], bytes]]
    let_go: threading.Event

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        words = self.path.strip("/").split("/")
        word = words[min(sum(path == self.path for path, _, _ in self.seen), len(words)) - 1]
        if word == "hang":
            self.let_go.wait(PATIENCE)
        if word == "cut":
            self.wfile.write(b"HTTP/1.1 2")
            self.close_connection = True
            return
        self.send_response(int(word) if word.isdigit() else 200)
        self.send_header("Location", "/redirected")
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"taken")

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Host:
    url: str
    seen: list[tuple[str, dict[str, str], bytes]]

    def got(self, path: str) -> list[tuple[dict[str, str], bytes]]:
        return [(headers, body) for seen, headers, body in self.seen if seen == path]


@contextmanager
def listening() -> Iterator[Host]:
    let_go = threading.Event()
    listener = type("One", (Listener,), {"seen": [], "let_go": let_go})
    server = ThreadingHTTPServer(("127.0.0.1", 0), listener)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Host(f"http://127.0.0.1:{server.server_address[1]}", listener.seen)  # type: ignore[attr-defined]
    finally:
        let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def host() -> Iterator[Host]:
    with listening() as found:
        yield found


@pytest.fixture
def store() -> Iterator[JobStore]:
    found = JobStore()
    yield found
    found.close()


def settings_of(folder: Path, allow: str = "127.0.0.1", secret: bytes | None = SECRET) -> Settings:
    if secret is None:
        return Settings(data_dir=folder, callback_allow=allow)  # type: ignore[arg-type]
    (folder / "secret").write_bytes(secret)
    return Settings(data_dir=folder, callback_allow=allow, callback_secret_file=folder / "secret")  # type: ignore[arg-type]


class Observed(Callbacks):
    """Remembers its outcomes."""

    def __init__(self, settings: Settings, store: JobStore, patience: Patience) -> None:
        self.outcomes: list[str] = []
        super().__init__(settings, store, self.outcomes.append, patience)


@contextmanager
def calling(
    folder: Path, store: JobStore, patience: Patience = QUICK, jobs: tuple[Job, ...] = ()
) -> Iterator[Observed]:
    callbacks = Observed(settings_of(folder), store, patience)
    callbacks.start(jobs)
    try:
        yield callbacks
    finally:
        callbacks.close()


def ended_job(store: JobStore, folder: Path, url: str | None, job_id: str = "01JOB", ago: float = 0.0) -> Job:
    spec = GenerateSpec(
        job_id, Task.T2VA, "a secret prompt", 64, 64, 5, SamplerSettings(2), folder / "cat.mp4", folder / "scratch"
    )
    job = Job(
        spec,
        status=Status.CANCELLED,
        finished_at=datetime.now(UTC) - timedelta(seconds=ago),
        order=Order(callback_url=url),
    )
    with store.writing() as connection:
        job_rows.insert(connection, job, 1)
    return job


def rows(store: JobStore) -> list[callback_rows.Callback]:
    with store.reading() as connection:
        return callback_rows.waiting(connection)


def test_an_end_is_told_and_signed(tmp_path: Path, store: JobStore, host: Host) -> None:
    began = int(time.time())
    with calling(tmp_path, store) as callbacks:
        callbacks.job_ended(ended_job(store, tmp_path, host.url + "/200?token=hidden"))
        until(lambda: callbacks.outcomes)
    headers, body = host.got("/200?token=hidden")[0]
    job = json.loads(body)
    assert (job["id"], job["status"]) == ("01JOB", "cancelled")
    assert (headers["x-h3-event"], headers["x-h3-delivery"]) == ("job.ended", "01JOB")
    assert headers["content-type"] == "application/json" and headers["user-agent"].startswith("h3runtime/")
    assert began <= int(headers["x-h3-timestamp"]) <= time.time()
    signed = hmac.new(SECRET, headers["x-h3-timestamp"].encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["x-h3-signature"] == "sha256=" + signed == signature(SECRET, headers["x-h3-timestamp"], body)
    assert callbacks.outcomes == ["delivered"] and rows(store) == []


def test_a_figure_that_is_not_finite_is_null(tmp_path: Path, store: JobStore, host: Host) -> None:
    def no_constant(word: str) -> None:
        raise AssertionError(word)

    job = replace(ended_job(store, tmp_path, host.url + "/200"), clip=replace(CLIP, timings={"sampling": float("nan")}))
    with calling(tmp_path, store) as callbacks:
        callbacks.job_ended(job)
        until(lambda: callbacks.outcomes)
    [(_, body)] = host.got("/200")
    assert json.loads(body, parse_constant=no_constant)["timings"]["sampling"] is None


def test_nothing_stays_of_a_job_that_is_gone(tmp_path: Path, store: JobStore) -> None:
    table = JobTable(store)
    with calling(tmp_path, store, replace(QUICK, first=100.0, longest=100.0)) as callbacks:
        jobs = [ended_job(store, tmp_path, "http://127.0.0.1:1/", name) for name in ("01A", "01B")]
        callbacks.job_ended(jobs[0])
        until(lambda: callbacks.outcomes)
        assert [row.job for row in rows(store)] == ["01A"]
        for job in jobs:
            table.remove(job.id)
        # Whoever ends a job may tell of it when it has been deleted.
        callbacks.job_ended(jobs[1])
    with store.reading() as connection:
        assert connection.execute("SELECT * FROM callbacks").fetchall() == []


def test_a_failure_is_tried_again_with_the_same_body(tmp_path: Path, store: JobStore, host: Host) -> None:
    with calling(tmp_path, store) as callbacks:
        callbacks.job_ended(ended_job(store, tmp_path, host.url + "/500/302/204"))
        until(lambda: "delivered" in callbacks.outcomes)
    tries = host.got("/500/302/204")
    assert len(tries) == 3 and len({body for _, body in tries}) == 1
    assert {headers["x-h3-delivery"] for headers, _ in tries} == {"01JOB"}
    # A redirect is not followed.
    assert host.got("/redirected") == []


@pytest.mark.parametrize(("path", "tries"), [("/500", 4), ("/cut", 4), ("/410", 1), ("/404/410", 2)])
def test_it_is_given_up_in_the_end(tmp_path: Path, store: JobStore, host: Host, path: str, tries: int) -> None:
    with calling(tmp_path, store) as callbacks:
        callbacks.job_ended(ended_job(store, tmp_path, host.url + path))
        until(lambda: "gave_up" in callbacks.outcomes)
        time.sleep(0.1)
    assert len(host.got(path)) == tries
    assert callbacks.outcomes == ["retried"] * (tries - 1) + ["gave_up"]
    assert rows(store) == []


def test_attempts_are_counted_before_they_are_made(tmp_path: Path, host: Host) -> None:
    """A process that dies in each attempt makes four of them in all."""
    path = tmp_path / "jobs.sqlite3"
    store = JobStore(path)
    with calling(tmp_path, store, replace(QUICK, first=100.0, longest=100.0)) as callbacks:
        callbacks.job_ended(ended_job(store, tmp_path, host.url + "/500"))
        until(lambda: callbacks.outcomes)
    assert [row.attempts for row in rows(store)] == [1]
    for attempt in (2, 3):
        store.close()
        store = JobStore(path)
        Callbacks(settings_of(tmp_path), store)
        with store.writing() as connection:
            found = callback_rows.claim(connection, "01JOB")
        assert found is not None and found.attempts == attempt
    with calling(tmp_path, store, replace(QUICK, longest=0.0)) as callbacks:
        until(lambda: callbacks.outcomes)
    assert callbacks.outcomes == ["gave_up"]
    store.close()


def test_what_is_owed_survives_a_restart(tmp_path: Path, host: Host) -> None:
    store = JobStore(tmp_path / "jobs.sqlite3")
    url = host.url.rsplit(":", 1)[0] + ":1/200"
    with calling(tmp_path, store, replace(QUICK, attempts=100)) as callbacks:
        callbacks.job_ended(ended_job(store, tmp_path, url))
        until(lambda: callbacks.outcomes)
    store.close()
    store = JobStore(tmp_path / "jobs.sqlite3")
    assert [row.url for row in rows(store)] == [url]
    with calling(tmp_path, store, replace(QUICK, attempts=100)) as callbacks:
        until(lambda: callbacks.outcomes)
    assert set(callbacks.outcomes) == {"retried"}
    store.close()


def test_an_end_that_the_last_run_did_not_get_to_tell_is_told_once(tmp_path: Path, store: JobStore, host: Host) -> None:
    job = ended_job(store, tmp_path, host.url + "/200")
    old = ended_job(store, tmp_path, host.url + "/old", "01OLD", ago=100_000)
    for _ in range(3):
        with calling(tmp_path, store, jobs=(job, old)):
            until(lambda: host.got("/200"))
            time.sleep(0.05)
    assert len(host.got("/200")) == 1 and host.got("/old") == []


def test_a_deleted_job_is_not_told_of(tmp_path: Path, store: JobStore, host: Host) -> None:
    def delete(_: str) -> None:
        """Before the next attempt is due, however late we are."""
        with store.writing() as connection:
            job_rows.remove(connection, ["01JOB"])
        deleted.set()

    deleted = threading.Event()
    callbacks = Callbacks(settings_of(tmp_path), store, delete, replace(QUICK, first=0.1, longest=0.1, jitter=0.0))
    callbacks.start()
    callbacks.job_ended(ended_job(store, tmp_path, host.url + "/500"))
    assert deleted.wait(PATIENCE)
    time.sleep(0.3)
    callbacks.close()
    assert len(host.got("/500")) == 1
    with calling(tmp_path, store):
        assert rows(store) == []


def test_a_job_without_a_url_owes_nothing(tmp_path: Path, store: JobStore) -> None:
    with calling(tmp_path, store) as callbacks:
        callbacks.job_ended(ended_job(store, tmp_path, None))
    assert rows(store) == []


def test_hosts_that_hang_delay_nobody_else(tmp_path: Path, store: JobStore, host: Host) -> None:
    with calling(tmp_path, store) as callbacks, listening() as first, listening() as second:
        for number, slow in enumerate([first, second] * 5):
            callbacks.job_ended(ended_job(store, tmp_path, slow.url + "/hang", f"01SLOW{number}"))
        until(lambda: first.seen and second.seen)
        for number in range(10):
            callbacks.job_ended(ended_job(store, tmp_path, f"{host.url}/200/{number}", f"01QUICK{number}"))
        until(lambda: len(host.seen) == 10)
        # One thread at most is lost to a host.
        assert len(first.seen) == len(second.seen) == 1


def test_one_attempt_takes_so_long_and_no_longer(tmp_path: Path, store: JobStore, host: Host) -> None:
    with calling(tmp_path, store, replace(QUICK, total=0.2, attempts=1)) as callbacks:
        began = time.monotonic()
        callbacks.job_ended(ended_job(store, tmp_path, host.url + "/hang"))
        until(lambda: callbacks.outcomes)
        assert time.monotonic() - began >= 0.2
    assert callbacks.outcomes == ["gave_up"]


def test_a_name_that_resolves_to_a_private_address_is_not_called(tmp_path: Path, store: JobStore, host: Host) -> None:
    address = [(socket.AF_INET, ("127.0.0.1", int(host.url.rpartition(":")[2])))]
    outcomes: list[str] = []
    settings = settings_of(tmp_path, "studio.example")
    callbacks = Callbacks(settings, store, outcomes.append, QUICK, resolve=lambda *_: address)
    callbacks.start()
    callbacks.job_ended(ended_job(store, tmp_path, "http://studio.example/200"))
    until(lambda: "gave_up" in outcomes)
    callbacks.close()
    assert host.seen == []


@pytest.mark.parametrize("url", ["http://127.0.0.1/x", "https://127.0.0.1:8443/x?y=z"])
def test_a_listed_host_may_be_named(tmp_path: Path, store: JobStore, url: str) -> None:
    assert Callbacks(settings_of(tmp_path), store).judge(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "//127.0.0.1/",
        "ftp://127.0.0.1/",
        "file:///etc/hostname",
        "http:///x",
        "http://a b/",
        "http://user:pw@127.0.0.1/",
        "http://127.0.0.1:0/",
        "http://127.0.0.2/",
        "http://[::1]/",
        "http://localhost/",
        "http://169.254.169.254/",
        "http://127.0.0.1.evil.example/",
        "http://127.0.0.1/" + "x" * 5000,
    ],
)
def test_any_other_is_an_offence(tmp_path: Path, store: JobStore, url: str) -> None:
    offence = Callbacks(settings_of(tmp_path), store).judge(url)
    assert offence is not None and offence.field == FIELD and offence.message


def test_without_hosts_or_a_secret_the_setting_is_named(tmp_path: Path, store: JobStore) -> None:
    for settings, name in (
        (settings_of(tmp_path, allow=""), "H3_CALLBACK_ALLOW"),
        (settings_of(tmp_path, secret=None), "H3_CALLBACK_SECRET_FILE"),
    ):
        callbacks = Callbacks(settings, store)
        offence = callbacks.judge("http://127.0.0.1/")
        assert offence is not None and offence.field == FIELD and name in offence.message
        callbacks.start()
        callbacks.job_ended(ended_job(store, tmp_path, "http://127.0.0.1/", f"01{name}"))
        assert rows(store) == []
        callbacks.close()


@pytest.mark.parametrize("secret", [b"", b"\n", b"x" * 5000])
def test_a_secret_that_signs_nothing_is_refused(tmp_path: Path, store: JobStore, secret: bytes) -> None:
    with pytest.raises(SettingsError, match="H3_CALLBACK_SECRET_FILE") as raised:
        Callbacks(settings_of(tmp_path, secret=secret), store)
    assert "xxxx" not in raised.value.message
    settings = settings_of(tmp_path)
    (tmp_path / "secret").unlink()
    with pytest.raises(SettingsError, match="can't be read"):
        Callbacks(settings, store)


def test_waits_grow_to_an_hour_and_vary() -> None:
    patience = Patience()
    waits = [patience.delay(attempt) for attempt in range(1, 12)]
    for attempt, (wait, even) in enumerate(zip(waits, [5, 20, 80, 320, 1280, *[3600] * 6], strict=True)):
        assert 0.8 * even <= wait <= 1.2 * even, attempt
    assert len({patience.delay(3) for _ in range(5)}) > 1
    assert 5 * 3600 < sum(waits) < 24 * 3600
    assert patience.delay(10_000) <= 1.2 * 3600


def test_a_busy_store_costs_no_attempt(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    store = JobStore()
    with calling(tmp_path, store, replace(QUICK, longest=1.2)) as callbacks:
        real = callback_rows.claim
        fails = iter([True, True, False])

        def claim(*arguments: Any) -> Any:
            if next(fails, False):
                raise NotReady("another process holds it")
            return real(*arguments)

        monkeypatch.setattr(callback_rows, "claim", claim)
        callbacks.job_ended(ended_job(store, tmp_path, host.url + "/200"))
        until(lambda: callbacks.outcomes)
    assert callbacks.outcomes == ["delivered"] and len(host.seen) == 1
    store.close()


def test_jobs_of_a_server_are_told_of_whatever_their_end(tmp_path: Path, host: Host) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    settings = {"callback_allow": "127.0.0.1", "callback_secret_file": tmp_path / "secret"}
    with running(tmp_path / "data", **settings) as server:
        url = host.url + "/200"
        assert server.post({**SMALL, "callback_url": url}).json()["status"] == "succeeded"
        failed = server.post({**SMALL, "prompt": "x fail_at=sampling", "callback_url": url}).json()
        slow = server.submit(**HELD, callback_url=url)
        waiting = server.submit(callback_url=url)
        for job in (waiting, slow):
            server.client.post(f"/jobs/{job}/cancel")
        until(lambda: len(host.seen) == 4)
        told = {headers["x-h3-delivery"]: json.loads(body) for headers, body in host.got("/200")}
        assert sorted(job["status"] for job in told.values()) == ["cancelled", "cancelled", "failed", "succeeded"]
        assert told[failed["id"]] == failed
        offence = server.offenders({**SMALL, "callback_url": "http://elsewhere.example/"})[FIELD]
        assert "H3_CALLBACK_ALLOW" in offence["message"] and "127.0.0.1" in offence["legal"]
        until(lambda: 'callbacks_total{outcome="delivered"} 4' in server.client.get("/metrics").text)


def test_a_server_that_calls_nobody_refuses_to(server: Running) -> None:
    assert "H3_CALLBACK_ALLOW" in server.offenders({**SMALL, "callback_url": "http://127.0.0.1/"})[FIELD]["message"]


@pytest.mark.parametrize("jump", [-10 * 3600.0, 10 * 3600.0])
def test_a_clock_that_jumped_while_the_server_was_down_delays_nothing(
    tmp_path: Path, store: JobStore, host: Host, jump: float
) -> None:
    ended_job(store, tmp_path, host.url + "/200")
    then = time.time() - jump
    with store.writing() as connection:
        callback_rows.add(connection, callback_rows.Callback("01JOB", host.url + "/200", b"{}", then, then))
    with calling(tmp_path, store) as callbacks:
        until(lambda: callbacks.outcomes)
    assert callbacks.outcomes == ["delivered"]

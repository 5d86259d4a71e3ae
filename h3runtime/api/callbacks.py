"""Telling whoever asked for it that a job has ended: a signed POST of the job, repeated until it is taken.

    POST <callback_url>
    Content-Type: application/json          the job, as `GET /jobs/{id}` answers it at its end
    X-H3-Event: job.ended
    X-H3-Delivery: <job id>                 the same for every attempt
    X-H3-Timestamp: <seconds since 1970>    of this attempt
    X-H3-Signature: sha256=<HMAC-SHA-256 in hex digits, by the secret, of timestamp + "." + body>

Does: judge a `callback_url` at admission (`H3_CALLBACK_ALLOW`, under the rules of `inputs.hosts`); keep what is owed in
the store, so that it survives a restart; try it twelve times at most, over some six hours. Any answer of 2xx settles
it, 410 ends it, all else (redirects too, which are not followed) is tried again after 5 s, 20 s, 80 s and so on up to
an hour, a fifth more or less at random. Does not: tell of jobs that were deleted, promise an order, read the answer.

A few threads share the work, and each host has one of them at most: one that hangs for hours delays nobody else. How
long to wait is measured on the monotonic clock; the wall clock only counts across a restart, and then within an hour.
Fed by `service`; the rows are `jobs.callback_rows`'. A log line names the host, never the rest of a URL.
"""

from __future__ import annotations

import http.client
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from h3runtime.api.answers import job_answer
from h3runtime.api.as_json import as_json
from h3runtime.api.inputs.connecting import Connector, Resolve, own_headers
from h3runtime.api.inputs.hosts import AllowedHosts, NotFetchedError, Place, place_of
from h3runtime.api.signing import secret_of, signature
from h3runtime.errors import H3Error, Offence
from h3runtime.jobs import callback_rows
from h3runtime.jobs.callback_rows import Callback
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.table import Job
from h3runtime.settings import Settings

FIELD = "callback_url"
THREADS = 4
ANSWER_BYTES = 4096
"""Read of an answer, so that its sender sees it taken; nothing of it is used."""
GONE = 410

log = structlog.get_logger("h3runtime.callbacks")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds, but for the attempts. first, factor, longest: between attempts. age: of an end that a server which was
    killed just then still tells of. total: for one attempt."""

    first: float = 5.0
    factor: float = 4.0
    longest: float = 3600.0
    jitter: float = 0.2
    attempts: int = 12
    age: float = 86_400.0
    connect: float = 5.0
    total: float = 10.0

    def delay(self, attempts: int) -> float:
        """How long to wait after that many."""
        even = min(self.longest, self.first * self.factor ** min(attempts - 1, 20))
        return even * random.uniform(1 - self.jitter, 1 + self.jitter)


@dataclass(frozen=True, slots=True)
class _Due:
    """When a job's callback is next tried, on the monotonic clock."""

    job: str
    host: str
    at: float


class Callbacks:
    """What one server owes. `SettingsError` for a secret that can't be used. on_outcome: `delivered`, `retried` or
    `gave_up` after each attempt. resolve, tls: others in tests."""

    def __init__(
        self,
        settings: Settings,
        store: JobStore,
        on_outcome: Callable[[str], None] = lambda _: None,
        patience: Patience | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = AllowedHosts(settings.callback_allow)
        self._allow = settings.callback_allow
        self._secret = secret_of(settings.callback_secret_file)
        self._store = store
        self._on_outcome = on_outcome
        self._patience = patience or Patience()
        self._connector = Connector(self._hosts, self._patience.connect, self._patience.total, resolve, tls)
        self._changed = threading.Condition()
        self._due: dict[str, _Due] = {}
        self._busy: set[str] = set()
        self._closed = False
        self._threads: list[threading.Thread] = []

    @property
    def is_on(self) -> bool:
        """Whether there is a host that may be told and a secret to sign with."""
        return bool(self._allow and self._secret)

    def judge(self, url: str) -> Offence | None:
        """What is wrong with a `callback_url`, None if nothing is. Resolves and connects to nothing."""
        if not self.is_on:
            missing = "H3_CALLBACK_SECRET_FILE" if self._allow else "H3_CALLBACK_ALLOW"
            return Offence(FIELD, f"this server calls nobody back: {missing} is not set", "no callback_url")
        try:
            place = place_of(url)
        except NotFetchedError as error:
            return Offence(FIELD, str(error), self._hosts.legal)
        try:
            self._hosts.judge(place)
        except NotFetchedError:
            return Offence(FIELD, f"is on {place.authority}, which is not in H3_CALLBACK_ALLOW", self._hosts.legal)
        return None

    def start(self, jobs: Iterable[Job] = ()) -> None:
        """Take up what is owed. jobs: ended ones among them are told of if their end came just before the last stop."""
        if not self.is_on:
            return
        for job in jobs:
            if job.finished_at and time.time() - job.finished_at.timestamp() < self._patience.age:
                self.job_ended(job)
        with self._store.reading() as connection:
            owed = callback_rows.waiting(connection)
        with self._changed:
            for callback in owed:
                left = min(max(0.0, callback.due - time.time()), self._patience.longest)
                self._due.setdefault(callback.job, _Due(callback.job, _host_of(callback.url), time.monotonic() + left))
        self._threads = [
            threading.Thread(target=self._work, name=f"callbacks-{number}", daemon=True) for number in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float = 1.0) -> None:
        """Begin no further attempt. One that is on its way has `seconds`; if it takes longer it counts as made."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def job_ended(self, job: Job) -> None:
        """Owe a callback for it, if it asked for one. Never fails: a job's end doesn't hang on who hears of it."""
        url = job.order.callback_url
        if url is None or not self.is_on:
            return
        now = time.time()
        body = as_json(job_answer(job))
        try:
            with self._store.writing() as connection:
                is_new = callback_rows.add(connection, Callback(job.id, url, body, now, now))
        except H3Error as error:
            log.warning("callback_not_kept", job_id=job.id, code=error.code, message=error.message)
            return
        if is_new:
            self._put(_Due(job.id, _host_of(url), time.monotonic()))

    def _put(self, due: _Due) -> None:
        with self._changed:
            self._due[due.job] = due
            self._changed.notify()

    def _work(self) -> None:
        while (due := self._next()) is not None:
            again = None
            try:
                again = self._attempt(due)
            except H3Error as error:
                # The store is busy or full: nothing was sent, and nothing counted.
                log.warning("callback_not_tried", job_id=due.job, code=error.code, message=error.message)
                again = self._patience.longest / 60
            except Exception as error:
                log.error("callback_bug", job_id=due.job, exc_info=error)
                again = self._patience.longest
            finally:
                with self._changed:
                    self._busy.discard(due.host)
                    if again is not None:
                        self._due[due.job] = replace(due, at=time.monotonic() + again)
                    self._changed.notify_all()

    def _next(self) -> _Due | None:
        """The earliest whose host nobody is busy with, once its time has come; None when all is over."""
        with self._changed:
            while not self._closed:
                free = [due for due in self._due.values() if due.host not in self._busy]
                first = min(free, key=lambda due: due.at, default=None)
                left = None if first is None else first.at - time.monotonic()
                if first is not None and left is not None and left <= 0:
                    self._busy.add(first.host)
                    return self._due.pop(first.job)
                self._changed.wait(left)
        return None

    def _attempt(self, due: _Due) -> float | None:
        """Seconds until the next, None if there is none."""
        made = self._claimed(due.job)
        if made is None:
            return None
        callback, delay = made
        status, why = self._sent(callback)
        is_told = status is not None and 200 <= status < 300
        is_over = is_told or status == GONE or callback.attempts >= self._patience.attempts
        outcome = "delivered" if is_told else "gave_up" if is_over else "retried"
        if is_over:
            with self._store.writing() as connection:
                callback_rows.settle(connection, due.job)
        said = {"job_id": due.job, "host": due.host, "attempt": callback.attempts, "status": status}
        log.info(f"callback_{outcome}", **said, **({"reason": why} if why else {}))
        self._on_outcome(outcome)
        return None if is_over else delay

    def _claimed(self, job: str) -> tuple[Callback, float] | None:
        """The callback, counted, and how long to wait if this attempt fails."""
        with self._store.writing() as connection:
            found = callback_rows.claim(connection, job)
            if found is None:
                return None
            delay = self._patience.delay(found.attempts)
            callback_rows.put_off(connection, job, time.time() + delay)
        return found, delay

    def _sent(self, callback: Callback) -> tuple[int | None, str]:
        """The status of the answer; None and a word why there is none."""
        try:
            return self._post(place_of(callback.url), callback), ""
        except NotFetchedError:
            return None, "not_allowed"
        except ssl.SSLError:
            return None, "tls"
        except TimeoutError:
            return None, "timeout"
        except (OSError, http.client.HTTPException, MemoryError):
            return None, "unreachable"

    def _post(self, place: Place, callback: Callback) -> int:
        until = time.monotonic() + self._patience.total
        with self._connector.connected(place, until) as connection:
            connection.putrequest("POST", place.target, skip_host=True, skip_accept_encoding=True)
            for name, value in self._headers(place, callback).items():
                connection.putheader(name, value)
            connection.endheaders(callback.body)
            with connection.getresponse() as response:
                with suppress(OSError, http.client.HTTPException):
                    response.read(ANSWER_BYTES)
                return response.status

    def _headers(self, place: Place, callback: Callback) -> dict[str, str]:
        timestamp = str(int(time.time()))
        return {
            **own_headers(place),
            "Content-Type": "application/json",
            "Content-Length": str(len(callback.body)),
            "X-H3-Event": "job.ended",
            "X-H3-Delivery": callback.job,
            "X-H3-Timestamp": timestamp,
            "X-H3-Signature": signature(self._secret, timestamp, callback.body),
        }


def _host_of(url: str) -> str:
    """For logs, and to let one thread at a time talk to it."""
    try:
        return place_of(url).authority
    except NotFetchedError:
        return ""

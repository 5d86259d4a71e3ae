"""`Client`: what one can ask of a server, as calls with types.

    client = Client("http://127.0.0.1:8001", key=None)
    job = client.submit({"prompt": "A cat.", "first_frame": {"upload": "cat"}}, {"cat": Path("cat.png")})
    for event in client.watch(job.id): ...
    client.download(job.id, Path("cat.mp4"))

Every call may raise `Refused` (the server's problem) and `Unreachable`. Calls from several threads are fine: each has a
connection of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from h3runtime.client.address import address_of
from h3runtime.client.downloading import OnBytes, download, wanted_of
from h3runtime.client.errors import Unreachable
from h3runtime.client.events import Event
from h3runtime.client.form import body_of
from h3runtime.client.job import RemoteJob
from h3runtime.client.watching import Watch
from h3runtime.client.wire import Wire
from h3runtime.errors import Offence, invalid

Prefer = float | Literal["end"] | None
"""How long a submission is held: seconds, until the job's end, or not at all."""
LONGEST_WAIT = 999_999
"""Seconds that `Prefer: wait` can say."""
ADMISSION = 120.0
"""Seconds that a server may take to fetch and decode what a request holds."""
DELETION = 60.0
"""Seconds until a running job has stopped."""
SENDINGS = 3


class Client:
    """url: `http://HOST:PORT`, https, with a base path or without. key: sent as `Authorization: Bearer`. timeout:
    seconds without a byte from a server that should answer at once."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 30.0) -> None:
        self._wire = Wire(address_of(url), key, timeout)

    @property
    def url(self) -> str:
        return self._wire.address.url

    def submit(
        self,
        request: Mapping[str, Any],
        uploads: Mapping[str, Path] | None = None,
        wait: Prefer = None,
        idempotency_key: str | None = None,
    ) -> RemoteJob:
        """The job, admitted, or ended if it did so within `wait`.

        request: the body of `POST /generate`; its media may name `uploads` by part. idempotency_key: with one, a
        submission whose answer got lost is sent again, which makes no second job.
        """
        headers = {"Prefer": _preference(wait)} if wait != "end" else {}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        patience = ADMISSION + (LONGEST_WAIT if wait == "end" else wait or 0.0)
        for left in reversed(range(SENDINGS if idempotency_key is not None else 1)):
            try:
                body = body_of(request, uploads or {})
                return RemoteJob(self._wire.json("POST", "/generate", body, headers, patience))
            except Unreachable as error:
                if not error.was_sent or not left:
                    raise
        raise AssertionError("the last sending returns or raises")

    def estimate(self, request: Mapping[str, Any], uploads: Mapping[str, Path] | None = None) -> dict[str, Any]:
        """What the request would take, and whether it would be admitted (service-contract, `POST /estimate`)."""
        body = body_of(request, uploads or {})
        return dict(self._wire.json("POST", "/estimate", body, patience=ADMISSION))

    def job(self, job_id: str) -> RemoteJob:
        return RemoteJob(self._wire.json("GET", _path(job_id)))

    def jobs(self, limit: int = 20, after: str | None = None) -> tuple[list[RemoteJob], bool]:
        """Up to `limit` (1..100) jobs, newest first, older than `after`; and whether there are more."""
        query = urlencode({"limit": limit} | ({"after": after} if after is not None else {}))
        page = self._wire.json("GET", f"/jobs?{query}")
        return [RemoteJob(facts) for facts in page["data"]], bool(page["has_more"])

    def watch(self, job_id: str, patience: float = 120.0) -> Iterator[Event]:
        """Events up to the one that tells its end. patience: seconds without any answer, a restart for one, before
        `Unreachable`."""
        return iter(Watch(self._wire, _quoted(job_id), patience))

    def cancel(self, job_id: str) -> RemoteJob:
        """Ask for it to stop; as it is right after that. Of no effect after its end."""
        return RemoteJob(self._wire.json("POST", f"{_path(job_id)}/cancel"))

    def delete(self, job_id: str) -> RemoteJob:
        """Its last state; afterwards neither it nor its files are there."""
        return RemoteJob(self._wire.json("DELETE", _path(job_id), patience=DELETION))

    def download(
        self,
        job_id: str,
        path: Path,
        variant: int = 0,
        overwrite: bool = False,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """A clip of a job that succeeded to `path`, whole or not at all. `BrokenDownload`, `OutputExists`."""
        outputs = {int(output["index"]): dict(output) for output in self.job(job_id).outputs}
        wanted = wanted_of(outputs.get(variant, {}), _quoted(job_id), variant)
        download(self._wire, wanted, path.absolute(), overwrite, on_bytes)

    def ready(self) -> dict[str, Any]:
        """What `/ready` says, ready or not."""
        return dict(self._wire.json("GET", "/ready", legal=frozenset({503})))


def _preference(wait: float | None) -> str:
    return f"wait={min(LONGEST_WAIT, math.ceil(wait))}" if wait else "respond-async"


def _path(job_id: str) -> str:
    return f"/jobs/{_quoted(job_id)}"


def _quoted(job_id: str) -> str:
    """`InvalidRequest` for what would be another path."""
    if job_id.strip("."):
        return quote(job_id, safe="")
    raise invalid([Offence("job", f"{job_id!r:.100} is no job's id", "an id as `submit` or `jobs` printed it")])

"""A job followed to its end, whatever happens to the connection: lost, refused while a server restarts, or led through
something that holds streams back.

A stream is resumed after the last event that came. One that ends early is asked for again after a while; where streams
can't be had at all, the job is looked at every second. Fed by `client`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from h3runtime.client.errors import Refused, Unreachable
from h3runtime.client.events import Event, EventReader
from h3runtime.client.job import RemoteJob
from h3runtime.client.wire import Wire

SILENCE = 45.0
"""Seconds without a byte after which a stream counts as dead: servers send a comment every 15."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
POLL = 1.0
PASSING = frozenset({429, 502, 503, 504})
"""Statuses of a server, or of what stands before it, that will be another one later."""
NO_STREAMS = frozenset({404, 405, 406, 501})
"""Of the events' route, while the job itself is there."""


class Watch:
    """Iterate once. patience: seconds without any answer before it gives up with the last error."""

    def __init__(self, wire: Wire, job_id: str, patience: float) -> None:
        self._wire = Wire(wire.address, wire.key, SILENCE)
        self._job_path = f"/jobs/{job_id}"
        self._patience = patience
        self._reader = EventReader()
        self._last_contact = time.monotonic()
        self._pause = FIRST_PAUSE
        self._streams = True
        self._status = ""

    def __iter__(self) -> Iterator[Event]:
        while True:
            had_streams = self._streams
            try:
                for event in self._stream() if self._streams else self._look():
                    self._met()
                    yield event
                    if event.is_end:
                        return
                # The stream is over and the job may be too: its end could have been told while nobody listened.
                for event in self._look() if self._streams else ():
                    if event.is_end:
                        yield event
                        return
            except (Unreachable, Refused) as error:
                self._judge(error)
            if not had_streams or self._streams:
                self._rest()

    def _stream(self) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"}
        if self._reader.last_id:
            headers["Last-Event-ID"] = self._reader.last_id
        with self._wire.answer("GET", f"{self._job_path}/events", headers=headers) as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                self._streams = False
                return
            yield from self._reader.read(answer.lines())

    def _look(self) -> Iterator[Event]:
        job = RemoteJob(self._wire.json("GET", self._job_path))
        self._met()
        if not job.has_ended:
            yield Event("progress", job.facts.get("progress", {}))
        if job.status != self._status:
            self._status = job.status
            yield Event("state", {"status": job.status})

    def _judge(self, error: Unreachable | Refused) -> None:
        """Raise what won't be better later."""
        if isinstance(error, Refused) and error.status in NO_STREAMS and self._streams:
            # Either the job is gone, which the next look tells, or only its stream can't be had.
            self._streams = False
            return
        if isinstance(error, Refused) and error.status not in PASSING:
            raise error
        if time.monotonic() - self._last_contact > self._patience:
            raise error

    def _met(self) -> None:
        self._last_contact = time.monotonic()
        self._pause = FIRST_PAUSE

    def _rest(self) -> None:
        if not self._streams:
            time.sleep(POLL)
            return
        time.sleep(max(self._pause, min(self._reader.retry or 0.0, LONGEST_PAUSE)))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

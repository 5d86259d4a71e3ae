"""All media of a request, judged in a child process with a deadline: what they hold by their packets, and what they
really hold once decoded.

`api` calls it at admission, before a job is queued. Opening a hostile file may crash, hang or eat memory, so nothing of
a file is read in the caller's own process: `examiner` is the child, this module is its parent. The child's crash, or
its end at the deadline, is the fault of the medium it was reading; the others are judged by another child.

    parent -> child   one line of JSON: way, limits, asks; then nothing, and the pipe's end when nobody waits any more
    child -> parent   one line when it is there; then for each ask, in order, `seconds` once the length is known (it
                      moves the deadline), and its measure or what is wrong with it
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h3runtime
from h3runtime.errors import BadMedia, InternalError
from h3runtime.media.intake.containers import bad_medium

CRASHED = "it crashed the program that reads it"
TOO_SLOW = "it takes too long to read"


@dataclass(frozen=True, slots=True)
class Ask:
    """One medium to judge. field: its name in the request. kind: `sound` also takes the sound track of a clip."""

    path: Path
    field: str
    kind: Literal["clip", "sound"]


@dataclass(frozen=True, slots=True)
class ClipMeasure:
    """width, height: upright, in square pixels. rotation: degrees clockwise that turned it, 0, 90, 180 or 270. rate:
    pictures a second on average. pictures: in the file. frames: on the 24 fps clock. seconds: frames / 24."""

    width: int
    height: int
    rotation: int
    rate: float
    pictures: int
    frames: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SoundMeasure:
    """As stored. samples: a channel, from the file's first picture on if it has one. seconds: samples / rate."""

    rate: int
    channels: int
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """clip: None for kind `sound`. sound: None if there is none."""

    clip: ClipMeasure | None
    sound: SoundMeasure | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What is read of one medium at most.

    pixels: of one picture, upright. measure_seconds: length of a file that is measured. verify_seconds: how much of it
    `verify` decodes, from its beginning; figures of what lies behind are those of the packets. samples: decoded ones, a
    channel. packets: in the file. wall_seconds, wall_per_second: how long it may take, the latter per second of the
    medium. memory_bytes: address space of the child.
    """

    pixels: int = 8192 * 4320
    measure_seconds: float = 3600.0
    verify_seconds: float = 120.0
    samples: int = 192_000 * 150
    packets: int = 4_000_000
    wall_seconds: float = 30.0
    wall_per_second: float = 10.0
    memory_bytes: int = 8 << 30

    def wall(self, media_seconds: float) -> float:
        """Seconds that a medium of that length may take; a length that isn't known yet counts 0."""
        return self.wall_seconds + self.wall_per_second * min(media_seconds, self.verify_seconds)


DEFAULT_LIMITS = Limits()
Way = Literal["measure", "verify"]
START_SECONDS = 60.0
"""How long the child may take to begin, on a machine that is busy loading a model."""
POLL = 0.1
"""Seconds between looks at the deadline."""


def measure(asks: Sequence[Ask], limits: Limits = DEFAULT_LIMITS) -> list[Measured | BadMedia]:
    """What each medium holds by its packets; nothing but a clip's first picture is decoded. An answer per ask, in their
    order. `InternalError` if no child can be started."""
    return _answers("measure", asks, limits)


def verify(asks: Sequence[Ask], limits: Limits = DEFAULT_LIMITS) -> list[Measured | BadMedia]:
    """What each medium really holds: it is decoded, as far as `limits` goes. Answers and errors as of `measure`."""
    return _answers("verify", asks, limits)


def _answers(way: Way, asks: Sequence[Ask], limits: Limits) -> list[Measured | BadMedia]:
    """One child for all, and another for what is left whenever one dies or is ended at a medium."""
    answers: list[Measured | BadMedia] = []
    while len(answers) < len(asks):
        child = _Examiner(way, asks[len(answers) :], limits)
        try:
            answers += child.answers()
        finally:
            child.end()
    return answers


class _Examiner:
    """A running child, from its start to its end."""

    def __init__(self, way: Way, asks: Sequence[Ask], limits: Limits) -> None:
        self._asks, self._limits = asks, limits
        command = [sys.executable, "-m", "h3runtime.media.intake.examiner"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
                cwd=Path(h3runtime.__file__).parent.parent,
            )
        except OSError as error:
            raise InternalError("No process can be started to read media") from error
        self._unread = b""
        self._say(way)

    def answers(self) -> list[Measured | BadMedia]:
        """Those it gives, and one more for the medium at which it died or was ended."""
        if self._line(time.monotonic() + START_SECONDS) is None:
            raise InternalError("The process that reads media didn't start")
        given: list[Measured | BadMedia] = []
        for ask in self._asks:
            answer = self._answer()
            given.append(answer if isinstance(answer, Measured) else bad_medium(ask.field, answer))
            if self._process.poll() is not None or answer in (CRASHED, TOO_SLOW):
                break
        return given

    def end(self) -> None:
        """Its whole group is ended, whatever it does; then it is reaped."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _say(self, way: Way) -> None:
        """The whole request, once; the pipe stays open, since its end tells the child that nobody waits any more."""
        asks = [{"path": str(ask.path.absolute()), "field": ask.field, "kind": ask.kind} for ask in self._asks]
        request = {"way": way, "limits": dataclasses.asdict(self._limits), "asks": asks}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def _answer(self) -> Measured | str:
        """The next measure, or why there is none."""
        begun = time.monotonic()
        deadline = begun + self._limits.wall(0)
        while (line := self._line(deadline)) is not None:
            said = json.loads(line)
            if "seconds" in said:
                deadline = begun + self._limits.wall(said["seconds"])
            else:
                return str(said["bad"]) if "bad" in said else _measured(said)
        return CRASHED if time.monotonic() < deadline else TOO_SLOW

    def _line(self, deadline: float) -> bytes | None:
        """The child's next line; None if it ended, or said nothing until the deadline."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while b"\n" not in self._unread:
            if time.monotonic() > deadline:
                return None
            if poll.poll(POLL * 1000):
                data = os.read(pipe, 65536)
                if not data:
                    return None
                self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line


def _measured(said: Mapping[str, Any]) -> Measured:
    clip, sound = said["clip"], said["sound"]
    return Measured(clip and ClipMeasure(**clip), sound and SoundMeasure(**sound))

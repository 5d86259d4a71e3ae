"""One child program that is fed through a pipe: started in a process group of its own, watched, and surely ended.

Knows nothing of ffmpeg's arguments or of clips; `mux` uses it and turns its exceptions into typed errors. There is no
shell, a thread drains stderr and keeps a bounded tail, and nothing here blocks for longer than `POLL` without looking
at the child, at the stall limit and at whether the caller has given up.

The order of ending matters. The child's exit is seen without reaping it, so its pid (and with it the id of its group)
can't be given to anyone else; then the whole group gets SIGKILL, so that a wrapper script's children go too and nobody
can ignore it; only then is the child reaped.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from h3runtime.media.worker import Worker

POLL = 0.1
"""Seconds between looks at everything that could end a wait."""
LAST_WORDS = 5.0
"""Seconds a child that stopped reading gets to end by itself and say why."""
TAIL_BYTES = 8192
"""How much of the end of stderr is kept."""


class ChildExitedError(Exception):
    """Gone before its work was done. `code`: exit status, negative for a signal, None if it only stopped reading."""

    def __init__(self, code: int | None, tail: str) -> None:
        super().__init__(f"the child ended with status {code}")
        self.code = code
        self.tail = tail


class ChildStalledError(Exception):
    """No progress, or not done, within `seconds`. The child still runs: whoever catches this ends it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no progress for {seconds:g} s")
        self.seconds = seconds


class GivenUpError(Exception):
    """The caller no longer wants the result. The child still runs."""


class Child:
    """A running program; all of its methods belong to one thread. `OSError` if it can't be started.

    stall_seconds: how long `feed` and `wait` go on without progress. given_up: asked at least every `POLL` seconds.
    on_line: gets each line of stderr, from the draining thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stall_seconds: float,
        given_up: Callable[[], bool],
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._given_up = given_up
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        os.set_blocking(_pipe(self._process.stdin).fileno(), False)
        self._code: int | None = None
        self._end = _End(self._process.pid)
        try:
            self._stderr = _Drain(_pipe(self._process.stderr), on_line)
        except BaseException:
            self._kill()
            self._close_pipes()
            raise

    def feed(self, data: memoryview) -> None:
        """Hand over all bytes of a flat byte view. Raises each of this module's errors."""
        pipe = _pipe(self._process.stdin).fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLOUT)
        moved = time.monotonic()
        while len(data):
            self.check()
            if not poll.poll(POLL * 1000):
                self._within(self._stall_seconds, moved)
                continue
            try:
                data = data[os.write(pipe, data) :]
                moved = time.monotonic()
            except BrokenPipeError:
                self._stopped_reading()

    def close_input(self) -> None:
        """End of data. The pipe is closed even if this raises."""
        _pipe(self._process.stdin).close()

    def wait(self, progress: Callable[[], object], seconds: float) -> None:
        """Until it ends by itself with status 0, at most `seconds`, at most the stall limit without a change of what
        `progress` returns. Raises each of this module's errors."""
        started = moved = time.monotonic()
        seen = progress()
        # Short first, where the end itself can't be waited for: a small clip is done in milliseconds.
        pause = POLL / 20
        while not self._has_ended():
            self._wanted()
            self._within(seconds, started)
            if (now := progress()) != seen:
                moved, seen = time.monotonic(), now
            self._within(self._stall_seconds, moved)
            self._end.wait(pause)
            pause = min(POLL, pause * 1.5)
        if self.end() != 0:
            raise self._exited()

    def check(self) -> None:
        """Raises `ChildExitedError` if it is gone, `GivenUpError` if nobody waits for it."""
        self._wanted()
        if self._has_ended():
            self.end()
            raise self._exited()

    def end(self) -> int:
        """Kill the group, reap the child, close the pipes; its exit status, -9 if it had to be killed. Never raises."""
        if self._code is None:
            self._code = self._kill()
            self._stderr.stop()
            self._close_pipes()
        return self._code

    def _kill(self) -> int:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _close_pipes(self) -> None:
        _pipe(self._process.stdin).close()
        _pipe(self._process.stderr).close()
        self._end.close()

    def _has_ended(self) -> bool:
        """Whether it has exited; leaves it unreaped."""
        if self._code is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _wanted(self) -> None:
        if self._given_up():
            raise GivenUpError

    @staticmethod
    def _within(seconds: float, since: float) -> None:
        if time.monotonic() - since > seconds:
            raise ChildStalledError(seconds)

    def _stopped_reading(self) -> None:
        """The pipe broke: it is about to exit, or it closed its input and lingers, which is a failure as well."""
        since = time.monotonic()
        while time.monotonic() - since < LAST_WORDS:
            self.check()
            time.sleep(POLL / 10)
        self.end()
        raise ChildExitedError(None, self._stderr.tail())

    def _exited(self) -> ChildExitedError:
        return ChildExitedError(self._code, self._stderr.tail())


class _End:
    """Of a process that isn't reaped yet: `wait` returns as it comes, where the system can tell (Linux from 5.3 on)."""

    def __init__(self, pid: int) -> None:
        self._descriptor = -1
        with suppress(AttributeError, OSError):
            self._descriptor = os.pidfd_open(pid)

    def wait(self, seconds: float) -> None:
        """At most so long."""
        if self._descriptor < 0:
            time.sleep(seconds)
            return
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self) -> None:
        """May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class _Drain:
    """Reads a pipe to its end in a thread, so that the child never blocks on it; keeps the last `TAIL_BYTES`."""

    def __init__(self, pipe: IO[bytes], on_line: Callable[[str], None] | None) -> None:
        self._pipe = pipe.fileno()
        self._on_line = on_line
        self._kept = bytearray()
        self._line = bytearray()
        self._stopping = threading.Event()
        self._thread = Worker(self._run)
        self._thread.start()

    def tail(self) -> str:
        return self._kept.decode(errors="replace")

    def stop(self) -> None:
        """Take what is still in the pipe, then end, even if a stray process holds its other side open."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while True:
            stopping = self._stopping.is_set()
            if poll.poll(0 if stopping else POLL * 500):
                data = os.read(self._pipe, 65536)
                if not data:
                    return
                self._take(data)
            elif stopping:
                return

    def _take(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-TAIL_BYTES]
        if self._on_line is None:
            return
        *lines, rest = (self._line + data).replace(b"\r", b"\n").split(b"\n")
        for line in filter(None, lines):
            self._on_line(line.decode(errors="replace"))
        self._line = rest[-TAIL_BYTES:]


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe

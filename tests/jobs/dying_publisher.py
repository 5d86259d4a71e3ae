"""A process that finishes a job and is killed in the middle of it, at every point in turn.

    python -m tests.jobs.dying_publisher FOLDER MODE

forks once for each point and prints how many there were. Fork i works in FOLDER/i and sends itself SIGKILL before its
i-th step that anybody could see after a crash: a link, a rename, a removal, a sync, and before and after each commit.
`MODE` is `new`, `overwrite` (of the clip of an earlier job) or `linkless` (a file system without hard links).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from h3runtime.jobs.store import JobStore
from tests.jobs.work import Place, open_place

STEPS = ("link", "replace", "unlink", "rmdir", "fsync")


def main(folder: Path, mode: str) -> None:
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    for point in count():
        if (pid := os.fork()) == 0:
            finish(folder / str(point), mode, point)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0, status
            print(point)
            return


def finish(folder: Path, mode: str, point: int) -> None:
    """Killed before step `point`, or done."""
    found = open_place(folder)
    if mode == "overwrite":
        found.done("old", output="x.mp4")
    found.admit("a", output="x.mp4", n=1 if mode == "overwrite" else 2, overwrite=mode == "overwrite")
    job = found.take()
    made = found.make(job)
    if mode == "linkless":
        os.link = no_links  # type: ignore[assignment]
    steps = count()

    def step() -> None:
        if next(steps) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(found, step)
    found.queue.succeeded("a", made)


def watch(found: Place, step: Callable[[], None]) -> None:
    for name in STEPS:
        setattr(os, name, counted(getattr(os, name), step))
    writing = found.table.store.writing

    @contextmanager
    def counted_writing(self: JobStore, **named: Any) -> Iterator[Any]:  # noqa: ARG001  # bound
        step()
        with writing(**named) as connection:
            yield connection
            # Within the transaction, before its commit.
            step()
        step()

    JobStore.writing = counted_writing  # type: ignore[method-assign]


def counted(act: Callable[..., Any], step: Callable[[], None]) -> Callable[..., Any]:
    def counted_act(*given: Any, **named: Any) -> Any:
        step()
        return act(*given, **named)

    return counted_act


def no_links(*given: Any, **named: Any) -> None:  # noqa: ARG001  # the system call's
    raise OSError(errno.EPERM, "Operation not permitted")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

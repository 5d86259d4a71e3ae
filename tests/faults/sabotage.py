"""What is done to a server process from inside, before it begins: moments that no signal from outside can hit, and
engines that start without importing PyTorch each time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from h3runtime.jobs import engine_process

NAMES = ("rename", "replace", "link")


def die_at_publishing(outputs: str, moment: str) -> None:
    """SIGKILL to itself `before` or `after` the first file is given a name in `outputs`."""

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(source: Any, target: Any, *rest: Any, **named: Any) -> Any:
            is_publishing = Path(os.fspath(target)).parent == Path(outputs)
            if is_publishing and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = call(source, target, *rest, **named)
            if is_publishing:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return wrapped

    for name in NAMES:
        setattr(os, name, deadly(getattr(os, name)))


def lose_reader_of_log(when: str) -> None:
    """Once the file `when` is there, nobody reads standard output any more; then the file goes."""

    def wait() -> None:
        while not Path(when).exists():
            time.sleep(0.01)
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        Path(when).unlink()

    threading.Thread(target=wait, daemon=True).start()


def fork_engines() -> None:
    """Each engine is forked from an interpreter that has imported the real one, so that it is there at once."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["h3runtime.jobs.child", "h3runtime.engine.resident"])
    vars(engine_process)["multiprocessing"] = SimpleNamespace(get_context=lambda _: forking)

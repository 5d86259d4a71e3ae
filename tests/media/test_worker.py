"""Threads that start, and threads that can't."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from h3runtime.media import worker
from h3runtime.media.process import Child
from h3runtime.media.worker import Worker

STARTER = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"


def refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture(params=[refuse, lambda *_, **__: None], ids=["refused", "dead at birth"])
def no_room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "BIRTH_SECONDS", 0.05)
    monkeypatch.setattr(threading, STARTER, request.param)
    yield
    # Python counts a thread that ended before it began for ever.
    threading._limbo.clear()  # type: ignore[attr-defined]


def test_a_worker_works() -> None:
    done: list[int] = []
    thread = Worker(target=done.append, args=(1,), name="w")
    thread.start()
    thread.join()
    assert done == [1] and thread.daemon and thread.name == "w" and not thread.is_alive()


@pytest.mark.usefixtures("no_room")
def test_a_worker_that_can_not_begin_says_so() -> None:
    with pytest.raises(MemoryError):
        Worker(target=print).start()


@pytest.mark.usefixtures("no_room")
def test_a_child_that_nobody_can_listen_to_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    kill: Callable[[Child], int] = Child._kill
    monkeypatch.setattr(Child, "_kill", lambda self: ended.append(kill(self)))
    with pytest.raises(MemoryError):
        Child(["sleep", "60"], stall_seconds=1, given_up=lambda: False)
    assert ended == [-9]

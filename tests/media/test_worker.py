"""Threads that start, and threads that can't."""

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest

from h3runtime.media import worker
from h3runtime.media.process import Child
from h3runtime.media.worker import Worker


def refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture(params=[refuse, lambda *_, **__: None], ids=["refused", "dead at birth"])
def no_room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BIRTH_SECONDS", 0.05)
    monkeypatch.setattr(_thread, "start_new_thread", request.param)


def test_a_worker_works() -> None:
    let_go, done = threading.Event(), list[bool]()
    thread = Worker(lambda word: done.append(word.wait(10)), (let_go,))
    assert not thread.is_alive()
    thread.start()
    thread.join(0.01)
    assert thread.is_alive() and not done
    let_go.set()
    thread.join()
    assert done == [True] and not thread.is_alive()


@pytest.mark.usefixtures("no_room")
def test_a_worker_that_can_not_begin_says_so() -> None:
    with pytest.raises(MemoryError):
        Worker(print).start()


def test_a_worker_that_begins_too_late_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    begin: list[Callable[[], None]] = []
    monkeypatch.setattr(worker, "BIRTH_SECONDS", 0.01)
    monkeypatch.setattr(_thread, "start_new_thread", lambda run, _: begin.append(run))
    done: list[int] = []
    late = Worker(done.append, (1,))
    with pytest.raises(MemoryError):
        late.start()
    begin[0]()
    assert done == [] and not late.is_alive()


@pytest.mark.usefixtures("no_room")
def test_a_child_that_nobody_can_listen_to_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    kill: Callable[[Child], int] = Child._kill
    monkeypatch.setattr(Child, "_kill", lambda self: ended.append(kill(self)))
    with pytest.raises(MemoryError):
        Child(["sleep", "60"], stall_seconds=1, given_up=lambda: False)
    assert ended == [-9]

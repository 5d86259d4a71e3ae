"""The sound beside the first chunk: who begins what, where, and what becomes of a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from h3runtime.engine.beside import Beside
from h3runtime.errors import JobCancelled, NumericalError


class _Stream:
    def __init__(self, device: object, priority: int) -> None:
        self.priority, self.waited = priority, [device]

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("current", device))
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    return torch.device("cuda", 0)


def _items(taken: list[int]) -> Iterator[int]:
    for index in range(3):
        taken.append(index)
        yield index


def test_on_cuda_the_first_chunk_is_begun_and_the_sound_waits_for_what_came_before_it(cuda) -> None:
    made, taken = Beside(cuda), []
    with made.stream() as stream:
        assert stream.waited == [cuda, ("current", cuda)] and stream.priority == -1
    chunks = made.begun(_items(taken))
    assert taken == [0]
    assert list(chunks) == [0, 1, 2]


def _cores(monkeypatch: pytest.MonkeyPatch, missing: int) -> Beside:
    """On a machine that has so many less than two cores for each numeric thread."""
    monkeypatch.setattr("h3runtime.engine.beside.usable_cores", lambda: 2 * torch.get_num_threads() - missing)
    return Beside(torch.device("cpu"))


def test_a_cpu_without_cores_for_both_begins_nothing_ahead(monkeypatch) -> None:
    taken: list[int] = []
    with _cores(monkeypatch, 1) as made, made.stream():
        chunks = made.begun(_items(taken))
        assert not made.in_thread and taken == []
        assert list(chunks) == [0, 1, 2]


def test_a_cpu_with_cores_for_both_makes_chunks_in_a_thread_one_ahead(monkeypatch) -> None:
    makers: list[tuple[int, int]] = []
    second, third = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        for index, event in enumerate([threading.Event(), second, third]):
            makers.append((threading.get_ident(), torch.get_num_threads()))
            event.set()
            yield index

    with _cores(monkeypatch, 0) as made:
        chunks = made.begun(items())
        assert next(chunks) == 0
        assert second.wait(10) and not third.wait(0.05)
        assert list(chunks) == [1, 2]
    assert len({maker for maker, _ in makers} | {threading.get_ident()}) == 2
    assert {threads for _, threads in makers} == {torch.get_num_threads()}


def test_what_a_chunk_raises_is_raised_where_it_is_taken(monkeypatch) -> None:
    def items() -> Iterator[int]:
        yield 0
        raise JobCancelled("the job was cancelled")

    with _cores(monkeypatch, 0) as made:
        chunks = made.begun(items())
        assert next(chunks) == 0
        with pytest.raises(JobCancelled):
            next(chunks)


def test_nothing_runs_on_behind_a_failure(monkeypatch) -> None:
    begun, made = threading.Event(), []

    with pytest.raises(NumericalError), _cores(monkeypatch, 0) as beside:

        def items() -> Iterator[int]:
            for index in range(1000):
                begun.set()
                while not beside.left:
                    time.sleep(0.001)
                made.append(index)
                yield index

        beside.begun(items())
        assert begun.wait(10)
        raise NumericalError("the sound is not finite")
    assert len(made) == 1

"""The sound beside the first chunk: who begins what, and that a CPU goes on as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from h3runtime.engine.beside import Beside


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


def test_a_cpu_begins_nothing_ahead() -> None:
    made, taken = Beside(torch.device("cpu")), []
    with made.stream():
        chunks = made.begun(_items(taken))
    assert taken == []
    assert list(chunks) == [0, 1, 2]

"""Clocks of the benchmark of a step: one call, a call again and again, and how much of a while a GPU was busy.

A device's own clock counts where it has one. Does not judge, knows no model. Read by `step`, `step_floor`, `step_loop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

SUSTAINED_MS: Final = 400.0
"""How long a kernel is repeated: long enough for the clock that it is held at under its own power."""
LEAST_CALLS, MOST_CALLS = 5, 40


def once(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call, until the device is done with it."""
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began)
    begin, end = _events()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end))


def sustained(
    call: Callable[[], object],
    device: torch.device,
    before: Callable[[], object] = lambda: None,
    budget_ms: float = SUSTAINED_MS,
) -> list[float]:
    """Milliseconds of each of many calls that follow each other without a pause, after one that isn't counted.

    before: run ahead of each call and not counted: what brings back an input that a call overwrites. On a CPU three.
    """
    before()
    first = once(call, device)
    if device.type != "cuda":
        return [_counted_once(call, device, before) for _ in range(3)]
    count = max(LEAST_CALLS, min(MOST_CALLS, round(budget_ms / max(first, 1e-3))))
    marks = [_events() for _ in range(count)]
    for begin, end in marks:
        before()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return [float(begin.elapsed_time(end)) for begin, end in marks]


def _counted_once(call: Callable[[], object], device: torch.device, before: Callable[[], object]) -> float:
    before()
    return once(call, device)


def union_ms(spans: Iterable[tuple[float, float]]) -> float:
    """Milliseconds covered by spans (from, to) in microseconds, what several cover counted once."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered / 1e3


def _events() -> tuple[Any, Any]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

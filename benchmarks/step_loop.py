"""A few steps of the sampling loop itself: how much of its time the device was busy, and where the host waited for it.

Runs `denoiser.denoise` as a request does, with as many steps as are asked for. Its own stop check tells when everything
before the loop is done: from there to the end of the last step is the wall's time. Busy is what the profiler saw of
kernels and copies, what overlaps counted once; host overhead is the rest. A wait of the host is a warning of PyTorch's
own (`set_sync_debug_mode`), kept with the line that it came from; the check of each step's finiteness waits for an
event of the step before, which is none. On a CPU only the wall's time is told. Fed by `step` with a lane.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.step_lanes import Ready
from benchmarks.step_times import union_ms
from h3runtime.denoiser.denoise import denoise
from h3runtime.engine.resident import COMPUTE_DTYPE

SYNCHRONISES: Final = "synchronizing CUDA operation"
"""Of the warning's text."""
TOLD_KERNELS: Final = 16


@dataclass(frozen=True, slots=True)
class Kernel:
    """All launches of one kernel, or copies of one kind."""

    name: str
    launches: int
    ms: float


@dataclass(frozen=True, slots=True)
class Loop:
    """wall_ms: of all steps. busy_ms: None where nobody knows. waits: by line of the source, None on a CPU.
    kernels: those that took most."""

    steps: int
    wall_ms: float
    busy_ms: float | None
    waits: dict[str, int] | None
    kernels: tuple[Kernel, ...]

    @property
    def overhead_percent(self) -> float | None:
        return None if self.busy_ms is None else 100 * (1 - self.busy_ms / self.wall_ms)


class Watch:
    """Begins to look when the loop asks for the second time whether to stop: before its first step."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu, self._device = device.type == "cuda", device
        self._profile = profile(activities=[ProfilerActivity.CUDA]) if self._on_gpu else None
        self._asked, self._began = 0, 0.0

    def should_stop(self) -> bool:
        self._asked += 1
        if self._asked == 2:
            self._begin()
        return False

    def _begin(self) -> None:
        if self._profile is not None:
            self._profile.start()
            torch.cuda.synchronize(self._device)
            torch.cuda.set_sync_debug_mode("warn")
        self._began = time.perf_counter()

    def end(self) -> tuple[float, list[Any]]:
        """Milliseconds of the wall, and what the profiler saw of the device."""
        if self._profile is None:
            return 1e3 * (time.perf_counter() - self._began), []
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize(self._device)
        wall = 1e3 * (time.perf_counter() - self._began)
        self._profile.stop()
        seen: Iterable[Any] = self._profile.events() or ()  # type: ignore[no-untyped-call]
        return wall, [event for event in seen if event.device_type == DeviceType.CUDA]


def run_loop(lane: Ready, steps: int, device: torch.device) -> Loop:
    """`steps` forwards in a loop. The device's switch of waits is as it was before, whatever happens."""
    watch = Watch(device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            denoise(
                lane.network,
                lane.given.layout,
                lane.given.text,
                (),
                lane.given.references,
                replace(lane.given.settings, steps=steps),
                device=device,
                dtype=COMPUTE_DTYPE,
                attention=lane.attention,
                should_stop=watch.should_stop,
            )
            wall, events = watch.end()
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    busy = union_ms((event.time_range.start, event.time_range.end) for event in events) if events else None
    waits = waits_of(caught) if device.type == "cuda" else None
    return Loop(steps, wall, busy, waits, kernels_of(events))


def waits_of(caught: Sequence[warnings.WarningMessage]) -> dict[str, int]:
    """How often the host waited for the device, by file and line."""
    waits = [one for one in caught if SYNCHRONISES in str(one.message)]
    return dict(Counter(f"{'/'.join(Path(one.filename).parts[-2:])}:{one.lineno}" for one in waits))


def kernels_of(events: Iterable[Any]) -> tuple[Kernel, ...]:
    """Those that took most of the time, first."""
    spans: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        spans[event.name].append(event.time_range.end - event.time_range.start)
    found = [Kernel(name[:120], len(took), sum(took) / 1e3) for name, took in spans.items()]
    return tuple(sorted(found, key=lambda kernel: -kernel.ms)[:TOLD_KERNELS])

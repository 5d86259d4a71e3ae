"""Which forwards are recorded as CUDA graphs, and for how long: for models that end sooner than a host can launch them.

Wraps a run's network; the denoising loop sees a network like any other, and one that gives the same bits. What a
recording is and does is `recording`'s part. Fed by `engine`; what was measured is told by diagnostics.

    one per      rows of every segment and which modulation they read, sizes of the latents, attention, linear backends,
                 producers, and the address of every weight, adapters' among them
    none for     masks, stacked heads, attention that isn't in `DENSE`, and what needs more memory than the limit
    let go       above the limit, what was used longest ago; with other adapters or another linear backend, all of a
                 model's; all of them when memory is full

Whether one is made: `on`, wherever one can be; `auto`, where it helps. That is measured in `measuring`, around the
engine's warm-up: a forward launched by the host, and the same one recorded. Another shape is judged by the measured one
nearest in rows, and is recorded if what its remaining steps save then is more than what recording takes. `off`: never.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import torch

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.backends.attention.counting import Tally
from h3runtime.denoiser.dit import Dit, Prepared
from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.recording import Recording, Results, addresses, pool_bytes
from h3runtime.denoiser.stepped import SteppedAttention

GraphMode = Literal["auto", "on", "off"]
DENSE: Final = frozenset({"sdpa", "cudnn_sdpa", "fa4", "h3_attn8"})
"""Attention that does the same at every step, asks the device nothing and launches on PyTorch's own stream."""
HOST_SHARE: Final = 0.5
"""Of a forward's time, what the host launches it in: with less the device never waits, so there is nothing to save."""
WORTH: Final = 0.97
"""Of the host's time, what a recording may take to be kept."""
TIMES: Final = 3
JUDGED: Final = 64
"""Shapes remembered."""
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """A shape, by its packed rows. Milliseconds: eager, a forward by the host; of that host, until all is launched;
    recorded, the same forward replayed; recording, what making it took. bytes: of its pool and inputs. why: there is
    none, or "" if it was kept."""

    rows: int
    eager_ms: float = 0.0
    host_ms: float = 0.0
    recorded_ms: float = 0.0
    recording_ms: float = 0.0
    bytes: int = 0
    why: str = ""

    def saves(self, rows: int, forwards: int) -> bool:
        """Whether a recording of so many rows pays within so many forwards. The device's time grows with rows, the
        host's doesn't: what it waits for is used up by then."""
        grown = max(1.0, rows / self.rows)
        return not self.why and (self.eager_ms - self.recorded_ms * grown) * forwards > self.recording_ms * grown


class Recordings:
    """All recordings of an engine, whose thread alone calls it. limit: bytes that they hold together. bytes: that they
    hold now, for whoever asks. measuring_seconds: that runs took longer because they were measured."""

    def __init__(self, mode: GraphMode, limit: int, device: torch.device) -> None:
        self.mode: GraphMode = mode if device.type == "cuda" else "off"
        self.limit, self.device = limit, device
        self.judged: OrderedDict[Key, Judged] = OrderedDict()
        self.measures = False
        self.bytes = 0
        self.replays = 0
        self.measuring_seconds = 0.0
        self._held: OrderedDict[Key, Recording] = OrderedDict()
        self._fault = ""

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Within, every shape that can be recorded is measured."""
        self.measures = self.mode != "off"
        try:
            yield
        finally:
            self.measures = False

    def of_run(self, dit: Dit, tally: Tally, forwards: int) -> Dit | RecordedDit:
        """`dit` for one run of so many forwards. tally: where attention backends count their calls."""
        if self.mode == "off" or not (self._wanted or self.measures or self.mode == "on"):
            return dit
        model = (id(dit), dit.dtype)
        weights = addresses(dit)
        for key in [key for key in self._held if key[:2] == model and key[2] != weights]:
            self._drop(key)
        return RecordedDit(dit, self, (*model, weights), tally, forwards)

    def find(self, key: Key) -> Recording | None:
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def wants(self, key: Key, rows: int, forwards: int) -> bool:
        """Whether a shape that has none is to get one, for `forwards` more."""
        judged = self.judged.get(key)
        if self._fault or (judged is not None and judged.why):
            return False
        if self.measures or self.mode == "on":
            return True
        near = judged if judged is not None and judged.recorded_ms else self._nearest(rows)
        return near is not None and near.saves(rows, forwards)

    def make(
        self, key: Key, record: Callable[[], Recording], eager: Callable[[], object], rows: int, pool: int
    ) -> Recording | None:
        """`record()`, kept under `key`; None, and `judged` says why, if it isn't. eager: a forward by the host. pool:
        bytes that a recording needs at least."""
        judged = Judged(rows)
        if pool > self.limit:
            return self._leave(key, replace(judged, bytes=pool, why=f"it needs {pool} bytes, of at most {self.limit}"))
        if self.measures:
            host, whole = timed(eager, self.device)
            judged = replace(judged, host_ms=host, eager_ms=whole)
            if self.mode == "auto" and host < HOST_SHARE * whole:
                return self._leave(key, replace(judged, why="the host launches it sooner than the device computes it"))
        self._make_room(pool)
        began = time.perf_counter()
        recording = self._recorded(record)
        judged = replace(judged, recording_ms=1e3 * (time.perf_counter() - began))
        if isinstance(recording, str):
            return self._leave(key, replace(judged, why=recording))
        judged = replace(judged, bytes=recording.bytes)
        if self.measures:
            judged = replace(judged, recorded_ms=timed(recording.replay, self.device)[1])
        if why := self._why_not(judged):
            recording.close()
            return self._leave(key, replace(judged, why=why))
        self._make_room(recording.bytes)
        self._held[key] = recording
        self.bytes += recording.bytes
        self._judge(key, judged)
        return recording

    def clear(self) -> None:
        """Let go of all of them; they are made anew where they help."""
        for key in list(self._held):
            self._drop(key)

    def told(self) -> dict[str, Any]:
        """For diagnostics."""
        return {
            "mode": self.mode,
            "recordings": len(self._held),
            "bytes": self.bytes,
            "replays": self.replays,
            "fault": self._fault,
            "judged": [asdict(judged) for judged in self.judged.values()],
        }

    @property
    def _wanted(self) -> bool:
        """Whether any shape was measured to gain by it."""
        return any(not judged.why for judged in self.judged.values())

    def _why_not(self, judged: Judged) -> str:
        if judged.bytes > self.limit:
            return f"it holds {judged.bytes} bytes, of at most {self.limit}"
        if self.mode == "auto" and self.measures and judged.recorded_ms > WORTH * judged.eager_ms:
            return "it is no faster than the host's launches"
        return ""

    def _recorded(self, record: Callable[[], Recording]) -> Recording | str:
        """A recording, or why there is none; then none is tried any more, unless memory was all that was missing. What
        a lost device says is left to the caller."""
        try:
            return record()
        except torch.OutOfMemoryError:
            why = "memory was full"
        except (RuntimeError, ValueError) as fault:
            torch.cuda.synchronize(self.device)
            self._fault = why = f"{type(fault).__name__}: {str(fault).partition(chr(10))[0][:200]}"
        torch.cuda.empty_cache()
        return why

    def _leave(self, key: Key, judged: Judged) -> Recording | None:
        self._judge(key, judged)
        return None

    def _judge(self, key: Key, judged: Judged) -> None:
        """What was measured is remembered longest: all else is judged by it."""
        self.judged[key] = judged
        if len(self.judged) > JUDGED:
            unmeasured = (other for other, known in self.judged.items() if not known.eager_ms)
            del self.judged[next(unmeasured, next(iter(self.judged)))]

    def _nearest(self, rows: int) -> Judged | None:
        known = [judged for judged in self.judged.values() if judged.recorded_ms]
        return min(known, key=lambda judged: abs(math.log(judged.rows / rows)), default=None)

    def _make_room(self, wanted: int) -> None:
        while self._held and self.bytes + wanted > self.limit:
            self._drop(next(iter(self._held)))

    def _drop(self, key: Key) -> None:
        gone = self._held.pop(key)
        self.bytes -= gone.bytes
        gone.close()


class RecordedDit:
    """A `Dit` for one run: the same numbers, from a recording where there is one or is to be one."""

    def __init__(self, dit: Dit, store: Recordings, model: Key, tally: Tally, forwards: int) -> None:
        self.config, self.refine, self.prepare = dit.config, dit.refine, dit.prepare
        self._dit, self._store, self._model, self._tally = dit, store, model, tally
        self._left = forwards
        self._begun: set[Key] = set()

    def __call__(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
        sigma_next: float | None,
    ) -> Results:
        eager: Callable[[], Results] = partial(
            self._dit, prepared, video, audio, sigma, step=step, masks=masks, sigma_next=sigma_next
        )
        left, self._left = self._left, self._left - 1
        attention = dense_of(prepared.attention, step)
        if masks is not None or attention is None or self._dit.final_layer.video_out.bank != 1:
            return eager()
        clock = self._dit.clock(prepared, sigma)
        key = (*self._model, attention.name, self._dit.producers.name, clock.rows.segments, len(clock.timeline))
        key = (*key, *_sizes(prepared, video, audio))
        found = self._store.find(key)
        if found is None and self._store.wants(key, prepared.layout.rows, left):
            record = partial(Recording, self._dit, prepared, attention, video, audio, sigma)
            if self._store.measures:
                return self._measured(key, prepared, record, eager)
            found = self._make(key, prepared, record, eager)
        if found is None:
            return eager()
        if key not in self._begun:
            found.begin(prepared)
            self._begun.add(key)
        self._tally.dispatches[attention.name] += len(self._dit.blocks)
        self._store.replays += 1
        return found(prepared.modulation.at(clock.timeline), video, audio)

    def _measured(
        self, key: Key, prepared: Prepared, record: Callable[[], Recording], eager: Callable[[], Results]
    ) -> Results:
        """The network's own results, ahead of what is measured: a first call compiles and loads."""
        made = eager()
        self._make(key, prepared, record, eager)
        return made

    def _make(
        self, key: Key, prepared: Prepared, record: Callable[[], Recording], eager: Callable[[], Results]
    ) -> Recording | None:
        """Calls of attention that only a recording makes aren't the run's."""
        rows, counted, began = prepared.layout.rows, self._tally.look(), time.perf_counter()
        found = self._store.make(key, record, eager, rows, pool_bytes(self._dit.config, rows, self._dit.dtype))
        self._tally.dispatches = counted.dispatches
        if self._store.measures:
            self._store.measuring_seconds += time.perf_counter() - began
        return found


def dense_of(attention: AttentionBackend, step: int) -> AttentionBackend | None:
    """What attends at `step`, if it may be recorded."""
    own = attention.at(step) if isinstance(attention, SteppedAttention) else attention
    return own if own.name in DENSE else None


def timed(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Milliseconds until the host is done with `call`, and until the device is; of the shortest of a few."""
    found = []
    for _ in range(TIMES):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        call()
        host = time.perf_counter() - began
        torch.cuda.synchronize(device)
        found.append((1e3 * (time.perf_counter() - began), 1e3 * host))
    whole, host = min(found)
    return host, whole


def _sizes(prepared: Prepared, video: torch.Tensor, audio: torch.Tensor) -> Key:
    layout = prepared.layout
    target = tuple((segment.start, segment.stop) for segment in layout.segments[-2:])
    return layout.rows, target, tuple(video.shape), tuple(audio.shape), video.dtype

"""One job in flight: where it is, how long each stage took, whether it should stop.

`Run` sits between the lines of `Engine.generate`; nothing below the engine knows about jobs. The fraction it reports
is weighted by how long stages took in this process's last run, so that it moves evenly, and it never falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from h3runtime.core import OnProgress, Progress, ShouldStop
from h3runtime.engine.device import PeakMeter
from h3runtime.errors import JobCancelled, JobError
from h3runtime.observe.timing import StageTimer

STAGES = ("conditioning", "sampling", "audio_decode", "video_decode", "mux")
FIRST_GUESS: Mapping[str, float] = {
    "conditioning": 0.05,
    "sampling": 0.75,
    "audio_decode": 0.02,
    "video_decode": 0.16,
    "mux": 0.02,
}


@dataclass(frozen=True, slots=True)
class Part:
    """What of a stage that comes in several visits one of them is. share: of the stage's time. before: steps of earlier
    visits. of: steps of them all, 0 for this one's own. counted: its own steps are steps of the stage."""

    share: float = 1.0
    before: int = 0
    of: int = 0
    counted: bool = True

    @property
    def ahead(self) -> Part:
        """Work ahead of this visit's first step, in a time that is counted with that of its steps."""
        return replace(self, share=0.0, counted=False)


WHOLE = Part()


class Run:
    """Reports progress, keeps `timings` in seconds, and raises JobCancelled once `should_stop` says so.

    clips: how often every stage but the conditioning comes.
    """

    def __init__(
        self,
        on_progress: OnProgress,
        should_stop: ShouldStop,
        shares: Mapping[str, float],
        meter: PeakMeter | None = None,
        clips: int = 1,
    ) -> None:
        total = sum(share * _times(stage, clips) for stage, share in shares.items())
        self._clips = clips
        self.timer = StageTimer()
        self._meter = meter
        self._shares = {stage: shares[stage] / total for stage in shares}
        self._on_progress = on_progress
        self._should_stop = should_stop
        self._total: float | None = None
        self._done = 0.0
        self._stage = ""
        self._step: int | None = None
        self._steps = 1
        self._part = WHOLE
        self._skipped: list[int] = []

    @contextmanager
    def stage(self, name: str, steps: int | None = None, part: Part = WHOLE) -> Iterator[None]:
        """Time a stage, and put its name (and step, if it counts `steps`) on any JobError that leaves it."""
        self.check_stop()
        self._part = part
        if name == "sampling" and not part.before:
            self._skipped = []
        self._stage, self._step, self._steps = name, None if steps is None else 0, steps or 1
        self._report(0, steps or 1)
        try:
            with self.timer.stage(name), self._measured(name):
                yield
        except JobError as error:
            error.stage = error.stage or name
            error.step = self.step_index if error.step is None else error.step + part.before
            raise
        self._done += self._shares.get(name, 0.0) * part.share
        self._report_fraction(steps or 1, steps or 1, self._done)

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        if self._meter is not None:
            self._meter.begin(name)
        yield
        if self._meter is not None:
            self._meter.end(name)

    def step(self, done: int, steps: int, preview: bytes | None = None, *, reused: bool = False) -> None:
        """`done` of `steps` of the current stage are behind us. preview: see `core.Progress`. reused: the last of them
        was made of earlier ones."""
        self._step = done
        if reused:
            self._skipped.append(self._part.before + done - 1)
        self._report(done, steps, preview)
        self.check_stop()

    def advance(self, by: int = 1) -> None:
        """So many more steps of the current stage are behind us, of those it was begun with."""
        self.step((self._step or 0) + by, self._steps)

    def show(self, preview: bytes) -> None:
        """A look at the clip, between two steps."""
        self._report(self._step or 0, self._steps, preview)

    def alive(self) -> None:
        """Nothing new, but it gets on: what watches for silence must know."""
        self._report(self._step or 0, self._steps)

    def look(self) -> None:
        """In the middle of work without steps of its own: it gets on, and whether it should."""
        self.alive()
        self.check_stop()

    def asked(self) -> bool:
        """`should_stop`, for work that asks between pieces of it: each time it also tells that it gets on."""
        self.alive()
        return self._should_stop()

    @property
    def should_stop(self) -> ShouldStop:
        return self._should_stop

    @property
    def skipped(self) -> tuple[int, ...]:
        """Steps of the clip in hand that were made of earlier ones, counted from 0 over all its sampling."""
        return tuple(self._skipped)

    @property
    def peaks(self) -> dict[str, int]:
        """Peak bytes by stage, as far as they were measured."""
        return {} if self._meter is None else dict(self._meter.figures)

    @property
    def stage_name(self) -> str | None:
        return self._stage or None

    @property
    def step_index(self) -> int | None:
        return None if self._step is None else self._step + self._part.before

    def check_stop(self) -> None:
        if self._should_stop():
            # Counted within this visit, as whatever a stage itself raises.
            raise JobCancelled("the job was cancelled", stage=self._stage or None, step=self._step)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by stage, and `total` once finished."""
        return {**self.timer.timings, **({} if self._total is None else {"total": self._total})}

    def finish(self) -> None:
        self._total = self.timer.total
        self._stage, self._part = "done", WHOLE
        self._report_fraction(1, 1, 1.0)

    def shares(self) -> dict[str, float]:
        """How the stages of this run compared, for one clip: the next run's weights."""
        timings = self.timer.timings
        return {stage: max(timings.get(stage, 0.0) / _times(stage, self._clips), 1e-3) for stage in STAGES}

    def _report(self, done: int, steps: int, preview: bytes | None = None) -> None:
        share = self._shares.get(self._stage, 0.0) * self._part.share
        self._report_fraction(done, steps, self._done + share * done / max(steps, 1), preview)

    def _report_fraction(self, done: int, steps: int, fraction: float, preview: bytes | None = None) -> None:
        fraction = min(fraction, 1.0)
        elapsed = self.timer.total
        eta = elapsed * (1 - fraction) / fraction if fraction > 0.02 else None
        step, of = self._part.before + done * self._part.counted, self._part.of or steps
        self._on_progress(Progress(self._stage, step, of, fraction, eta, preview=preview, skipped=self.skipped))


def _times(stage: str, clips: int) -> int:
    """Conditions are made once, for all clips of a request."""
    return 1 if stage == "conditioning" else clips

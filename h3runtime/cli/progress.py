"""A progress bar on stderr, and on request a line per step with its time. stdout stays for results.

On a terminal one bar for loading and one for the job. Into a file or a pipe one line for each stage that lasts: a bar
there is noise, and a command that fails early says why in two lines and nothing else.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from tqdm import tqdm

from h3runtime.cli.report import say
from h3runtime.core import Progress

LABELS = {
    "loading": "loading",
    "self_test": "asking the kernels known answers",
    "warming": "warming up",
    "conditioning": "conditioning",
    "sampling": "sampling",
    "audio_decode": "decoding sound",
    "video_decode": "decoding video",
    "mux": "writing",
    "done": "done",
}
LOADING = ("loading", "self_test", "warming")
"""What comes before a job."""
LASTS = {"loading": 15.0}
"""Seconds after which a stage is worth a line in a file. The embedded model loads in less, real weights in minutes."""
LASTS_ELSE = 2.0
BAR = "{desc:<24} {percentage:3.0f}% |{bar:30}| {elapsed}"
UNITS = 1000


class ProgressBar:
    """A context; call it with each `Progress`.

    quiet: nothing at all. steps: also print every step's seconds.
    """

    def __init__(self, *, quiet: bool, steps: bool) -> None:
        self._quiet, self._steps = quiet, steps
        self._is_terminal = sys.stderr.isatty()
        self._bar: tqdm[None] | None = None
        self._phase = self._stage = self._told = self._part = ""
        self._step = 0
        self._stage_began = self._step_began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        if self._is_terminal:
            self._draw(progress)
        else:
            self._tell_stage(progress.stage)
        if self._steps:
            self._time_step(progress)
        self._stage = progress.stage

    def say(self, line: str) -> None:
        """A line of somebody else's, above the bar; from any thread."""
        with suppress(OSError):
            tqdm.write(line, file=sys.stderr)

    def begin_part(self, name: str) -> None:
        """What follows is part of a longer job, as `clip 3/30`."""
        self._part, self._told = f"{name} ", ""

    def _tell_stage(self, stage: str) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage_began = now
        lasts = now - self._stage_began > LASTS.get(stage, LASTS_ELSE)
        if (lasts or self._steps) and stage != self._told:
            say(self._part + LABELS.get(stage, stage))
            self._told = stage

    def _draw(self, progress: Progress) -> None:
        phase = "load" if progress.stage in LOADING else "job"
        if phase != self._phase:
            self._close()
            self._phase = phase
            self._bar = tqdm(total=UNITS, file=sys.stderr, bar_format=BAR)
        assert self._bar is not None
        self._bar.set_description_str(self._part + _label(progress), refresh=progress.stage != self._stage)
        # `update` redraws at most ten times a second.
        self._bar.update(round(UNITS * progress.fraction) - self._bar.n)

    def _time_step(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == self._stage and progress.step > self._step:
            seconds = (now - self._step_began) / (progress.step - self._step)
            reused = "  reused" if progress.step - 1 in progress.skipped and progress.stage == "sampling" else ""
            self.say(f"{progress.stage} {progress.step}/{progress.steps}  {seconds:.3f} s{reused}")
        if progress.stage != self._stage or progress.step != self._step:
            self._step, self._step_began = progress.step, now

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _label(progress: Progress) -> str:
    label = LABELS.get(progress.stage, progress.stage)
    told = f"{label} {progress.step}/{progress.steps}" if progress.steps > 1 else label
    return f"{told}, {len(progress.skipped)} reused" if progress.skipped and progress.stage == "sampling" else told

"""A progress bar on stderr, and on request a line per step with its time. stdout stays for results."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

from h3runtime.core import Progress

LABELS = {
    "loading": "loading",
    "warming": "warming up",
    "conditioning": "conditioning",
    "sampling": "sampling",
    "audio_decode": "decoding sound",
    "video_decode": "decoding video",
    "mux": "writing",
    "done": "done",
}


class ProgressBar:
    """A context; call it with each `Progress`. One bar for loading, one for the job.

    quiet: nothing at all. steps: print every step's seconds above the bar.
    """

    def __init__(self, *, quiet: bool, steps: bool) -> None:
        self._quiet, self._steps = quiet, steps
        self._bar: tqdm[None] | None = None
        self._phase = ""
        self._last: tuple[str, int] = ("", 0)
        self._last_time = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        phase = "load" if progress.stage in ("loading", "warming") else "job"
        if phase != self._phase:
            self._close()
            self._phase = phase
            self._bar = tqdm(total=1000, file=sys.stderr, bar_format="{desc:<24} {percentage:3.0f}% |{bar:30}| {elapsed}")
        assert self._bar is not None
        self._bar.set_description_str(_label(progress), refresh=False)
        self._bar.n = round(1000 * progress.fraction)
        self._bar.refresh()
        if self._steps:
            self._print_step(progress)

    def _print_step(self, progress: Progress) -> None:
        now, here = time.monotonic(), (progress.stage, progress.step)
        same_stage = here[0] == self._last[0]
        if same_stage and here[1] > self._last[1]:
            tqdm.write(f"{here[0]} {here[1]}/{progress.steps}  {now - self._last_time:.3f} s", file=sys.stderr)
        if here != self._last:
            self._last, self._last_time = here, now

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _label(progress: Progress) -> str:
    label = LABELS.get(progress.stage, progress.stage)
    return f"{label} {progress.step}/{progress.steps}" if progress.steps > 1 else label

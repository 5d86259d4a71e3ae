"""A fake engine that ends in every way a real one can, at a chosen stage and step.

A job asks with `WAY@STAGE` or `WAY@STAGE:STEP` in its prompt. A process asks while it loads: `plan` names the way of
each start in turn, `""` for none, and starts after the last are sound.

    sigkill, sigsegv, signal, exit    the process ends at once (`signal`: one without a name)
    starved                           as the kernel's out-of-memory killer: leaves `<folder>/starved`, then SIGKILL
    memory, device                    raises MemoryError, or what a lost device becomes
    hang, freeze                      computes for ever, or stops altogether
    orphan                            ends, while a child holds all that it had open
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from h3runtime.core import Clip, GenerateSpec, OnProgress, Progress, ShouldStop
from h3runtime.errors import EngineDead
from tests.fake_engine import FakeEngine

FOREVER = 3600.0
NAMELESS = signal.SIGRTMIN + 3


@dataclass
class DyingEngine(FakeEngine):
    """`folder` holds what a later process must know: how many were started before it."""

    folder: Path = Path()
    plan: Sequence[str] = ()

    def load(self, on_progress: OnProgress) -> None:
        number = sum(1 for _ in self.folder.glob("start-*"))
        (self.folder / f"start-{number}").touch()
        way = self.plan[number] if number < len(self.plan) else ""
        for stage, fraction in (("loading", 0.1), ("warming", 0.8)):
            on_progress(Progress(stage, 0, 1, fraction))
            self._meet(way, stage, 0)

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip:
        self._meet(spec.prompt, "silence", 0)
        return super().generate(spec, on_progress, should_stop)

    def _misbehave(self, stage: str, step: int, words: dict[str, str]) -> None:
        for word in words:
            self._meet(word, stage, step)

    def _meet(self, asked: str, stage: str, step: int) -> None:
        way, _, place = asked.partition("@")
        if place in (stage, f"{stage}:{step}"):
            self._end(way)

    def _end(self, way: str) -> None:
        match way:
            case "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sigsegv":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "signal":
                os.kill(os.getpid(), NAMELESS)
            case "exit":
                os._exit(3)
            case "starved":
                (self.folder / "starved").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            case "memory":
                raise MemoryError
            case "device":
                raise EngineDead("the device failed: CUDA error: an illegal memory access was encountered")
            case "hang":
                time.sleep(FOREVER)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "orphan":
                child = subprocess.Popen(["sleep", str(FOREVER)], close_fds=False)
                (self.folder / "orphan").write_text(str(child.pid))
                os._exit(3)


def create(folder: Path, plan: Sequence[str] = ()) -> DyingEngine:
    folder.mkdir(exist_ok=True)
    return DyingEngine(folder=folder, plan=plan)

"""An engine without a model but with a real encoder: it walks through the stages and writes a real clip with ffmpeg.

Imports no torch, so that a server with it is ready in half a second. A request steers it by words in its prompt:

    pause=0.02             how long each sampler step takes; 0.002 if it isn't said
    hold=STAGE             wait there (after the first step of it) for as long as the file `gate` in the folder above
                           the data is missing; a stop is heard meanwhile, unless `deaf` is said too

What it did and when goes to the file `journal` beside the gate: `pid job stage step`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from h3runtime.core import (
    BackendChoice,
    Clip,
    ComponentFacts,
    EngineFacts,
    Estimate,
    GenerateSpec,
    OnProgress,
    Progress,
    ShouldStop,
    Work,
    variant_path,
)
from h3runtime.errors import JobCancelled
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.mux import ClipShape, ClipWriter, Limits
from h3runtime.settings import Settings

STAGES = ("conditioning", "sampling", "audio_decode", "video_decode", "mux")
GATE, JOURNAL = "gate", "journal"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc33"
    "0000000049454e44ae426082"
)


def create(settings: Settings, threads: int) -> StubEngine:  # noqa: ARG001  # what `serve` passes
    # Before the supervisor, which would end all of it, not the encoder alone.
    return StubEngine(settings.data_dir.parent, settings.timeout_mux / 2)


@dataclass
class StubEngine:
    """Implements `core.Engine`."""

    folder: Path
    stall: float
    tool: FFmpeg | None = None

    def load(self, on_progress: OnProgress) -> None:
        # Asking it what it can do takes longer than everything else here.
        path = shutil.which("ffmpeg")
        assert path is not None
        self.tool = FFmpeg(Path(path), "", frozenset({"libx264", "aac"}), "the one on PATH")
        on_progress(Progress("warming", 1, 1, 0.9))

    def facts(self) -> EngineFacts:
        attention = BackendChoice("sdpa", "auto", ("sdpa",), {"sdpa": "reference"}, {})
        linear = BackendChoice("dequant", "auto", ("dequant",), {"dequant": "reference"}, {})
        parts = tuple(
            ComponentFacts("transformer", f"{name}.safetensors", "ab" * 32, "nvfp4", 10, 0.1, True, name, 100.0)
            for name in ("fl2va", "ref2va")
        )
        return EngineFacts("cpu", "stub:abab", parts, attention, linear, {"warmup_seconds": 0.1}, {})

    def estimate(self, spec: GenerateSpec) -> Estimate:
        work = Work(dict.fromkeys(STAGES, float(spec.frames * spec.width * spec.height)))
        return Estimate({"video": 10}, spec.sampling.steps, work, {"weights_bytes": 10}, 100, 1000)

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip:
        run = _Run(self.folder, spec, on_progress, should_stop)
        run.stage("conditioning", 1)
        run.stage("sampling", spec.sampling.steps)
        run.stage("audio_decode", 1)
        clips = [self._write(spec, index, run) for index in range(spec.n)]
        return replace(clips[0], variants=tuple(clips[1:]), timings=run.timings)

    def close(self) -> None:
        pass

    def _write(self, spec: GenerateSpec, index: int, run: _Run) -> Clip:
        assert self.tool is not None
        shape = ClipShape(spec.width, spec.height, spec.frames)
        output, seed = variant_path(spec.output, index, spec.n), spec.sampling.seed + index
        sound = np.zeros((2, spec.frames * 32_000 // 24), np.float32)
        limits = Limits(stall=self.stall)
        with ClipWriter(
            self.tool, output, spec.scratch, shape, sound, encode=spec.encode, limits=limits,
            overwrite=spec.overwrite, should_stop=run.should_stop,
        ) as writer:  # fmt: skip
            with run.timed("video_decode"):
                for chunk in _pictures(shape, seed):
                    writer.put(chunk)
                run.reached("video_decode", 0, 1)
            with run.timed("mux"):
                run.reached("mux", 0, 1)
                written = writer.finish()
                run.reached("mux", 1, 1)
        return Clip(
            output, written.sha256, written.bytes, spec.width, spec.height, spec.frames, sound.shape[1], seed,
            spec.sampling.steps, spec.attention or "sdpa", spec.linear or "dequant", {},
            {"peak_sampling_allocated_bytes": 1}, {},
        )  # fmt: skip


class _Run:
    """Where one job is, and where it has to wait."""

    def __init__(self, folder: Path, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> None:
        words = [word.partition("=")[::2] for word in spec.prompt.split()]
        self._holds = [value for name, value in words if name == "hold"]
        self._pause = float(dict(words).get("pause", "0.002"))
        self._deaf = ("deaf", "") in words
        self._folder, self._job = folder, spec.job_id
        self._on_progress, self.should_stop = on_progress, should_stop
        self.timings: dict[str, float] = {}

    def stage(self, name: str, steps: int) -> None:
        with self.timed(name):
            for step in range(steps):
                self.reached(name, step, steps)
                time.sleep(self._pause)
            self._say(name, steps, steps)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.timings[name] = self.timings.get(name, 0.0) + time.monotonic() - began

    def reached(self, stage: str, step: int, steps: int) -> None:
        self._say(stage, step, steps)
        if stage in self._holds and step == min(1, steps - 1):
            while not (self._folder / GATE).exists():
                if not self._deaf:
                    self._check(stage, step)
                time.sleep(0.005)
        self._check(stage, step)

    def _check(self, stage: str, step: int) -> None:
        if self.should_stop():
            raise JobCancelled("stopped", stage=stage, step=step)

    def _say(self, stage: str, step: int, steps: int) -> None:
        with (self._folder / JOURNAL).open("a") as journal:
            journal.write(f"{os.getpid()} {self._job} {stage} {step}\n")
        fraction = (STAGES.index(stage) + step / max(1, steps)) / len(STAGES)
        preview = PNG if stage == "sampling" else None
        self._on_progress(Progress(stage, step, steps, fraction, preview=preview))


def _pictures(shape: ClipShape, seed: int) -> Iterator[np.ndarray]:
    noise = np.random.default_rng(seed)
    for first in range(0, shape.frames, 17):
        count = min(17, shape.frames - first)
        yield noise.integers(0, 255, (count, shape.height, shape.width, 3), dtype=np.uint8)

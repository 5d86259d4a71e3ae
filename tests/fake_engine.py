"""An engine without a model: it walks through the stages at a chosen pace and writes a small real file.

A request steers it by words in its prompt, `word` or `word=value`, so that one running engine can play every part:

    step_seconds=0.05      how long each sampler step takes
    hold                   it stays at its last step until it is told to stop; with `step_seconds` it tells that step
                           again and again, without it is silent
    until=FILE             the same, until the file is there
    deaf_until=FILE        its first step goes on, deaf to stops, until the file is there
    fail_at=STAGE          raise EncoderFailed there; `bug_at` a plain exception, `full_at` an ENOSPC
    die_at=STAGE           exit the process; `segfault_at` kills it by a signal
    hang_at=STAGE          sleep for ever, deaf to stops; `orphan_at` also leaves a child process behind
    warn                   one warning in the clip
    peak=BYTES             what it is estimated to take at most (CAPACITY is what there is); `weigh_seconds` how long
                           the estimate takes, `weigh_bug` an error in it
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import struct
import subprocess
import time
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from h3runtime.core import (
    LATENTS_SUFFIX,
    BackendChoice,
    Check,
    Clip,
    ComponentFacts,
    EngineFacts,
    Estimate,
    GenerateSpec,
    KernelCheck,
    LoadProgress,
    OnProgress,
    Progress,
    SelfTest,
    ShouldStop,
    Work,
    variant_path,
)
from h3runtime.errors import CheckpointError, EncoderFailed, EngineDead, JobCancelled, Offence

FOREVER = 3600.0
CAPACITY = 10 * 2**30
PEAK = 2**30
STAGES = ("conditioning", "sampling", "audio_decode", "video_decode", "mux")


@dataclass
class FakeEngine:
    """Implements `core.Engine`. load_fault: `checkpoint`, `bug`, `file`, `die` or none. journal: what it did. gates: a
    folder; it loads until `loaded` is there, and warms up until `warm` is."""

    load_seconds: float = 0.0
    load_fault: str = ""
    journal: Path | None = None
    gates: Path | None = None
    done: int = field(default=0, init=False)

    def load(self, on_progress: OnProgress) -> None:
        self._note("load")
        on_progress(Progress("loading", 0, 2, 0.1, loading=LoadProgress("transformer", 1, 10, 5.0)))
        self._load_until("loaded")
        if self.load_fault == "checkpoint":
            offences = [Offence("blocks.0.attn.qkv_proj.weight", "is missing"), Offence("x.weight", "has shape [1]")]
            raise CheckpointError("dit.safetensors can't be loaded", offences)
        if self.load_fault == "bug":
            raise RuntimeError("a bug")
        if self.load_fault == "file":
            Path("/secret/path").read_bytes()
        if self.load_fault == "die":
            os._exit(7)
        on_progress(Progress("warming", 1, 2, 0.8))
        self._load_until("warm")

    def _load_until(self, gate: str) -> None:
        time.sleep(self.load_seconds)
        while self.gates is not None and not (self.gates / gate).exists():
            time.sleep(0.01)

    def facts(self) -> EngineFacts:
        attention = BackendChoice("sdpa", "auto: fits", ("sdpa", "exact"), {"sdpa": "reference"}, {"sage2": "no GPU"})
        linear = BackendChoice("dequant", "auto: fits", ("dequant",), {"dequant": "reference"}, {})
        part = ComponentFacts("transformer", "dit.safetensors", "ab" * 32, "nvfp4", 10, 0.5, True, None, 20.0)
        startup, memory = {"warmup_seconds": 0.1}, {"host_available_bytes": 5}
        asked = KernelCheck("attention", "sdpa", "65536 rows", 0.002, 0.02, 0.5, cached=True)
        return EngineFacts(
            "cpu", "abab", (part,), attention, linear, startup, memory, self_test=SelfTest((asked,), 0.01)
        )

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip:
        self._note(f"generate {spec.job_id}")
        words = words_of(spec)
        timings = {}
        for stage in STAGES:
            began = time.monotonic()
            steps = spec.sampling.steps if stage == "sampling" else 1
            for step in range(steps):
                if should_stop():
                    raise JobCancelled("stopped", stage=stage, step=step)
                on_progress(Progress(stage, step, steps, 0.5, preview=png(step) if stage == "sampling" else None))
                self._misbehave(stage, step, words)
                if stage == "sampling" and step == 0 and "deaf_until" in words:
                    while not Path(words["deaf_until"]).exists():
                        time.sleep(0.01)
                if stage == "sampling":
                    time.sleep(float(words.get("step_seconds", "0.001")))
            if stage == "sampling":
                self._hold(words, Progress(stage, steps - 1, steps, 0.5, preview=png(steps)), on_progress, should_stop)
            timings[stage] = time.monotonic() - began
        self.done += 1
        return self._publish(spec, timings, words)

    def close(self) -> None:
        self._note("close")

    def estimate(self, spec: GenerateSpec) -> Estimate:
        words = words_of(spec)
        time.sleep(float(words.get("weigh_seconds", "0")))
        if "weigh_bug" in words:
            raise ValueError("/secret/path")
        rows = {"text": len(spec.prompt), "audio": spec.frames, "video": spec.width * spec.height // 1024 * spec.frames}
        work = Work({stage: float(sum(rows.values()) * spec.n) for stage in STAGES})
        peak = int(words.get("peak", PEAK))
        fit = "" if peak <= CAPACITY else "64x64, 5 frames"
        return Estimate(rows, spec.sampling.steps, work, {"weights": PEAK // 2, "rest": PEAK // 2}, peak, CAPACITY, fit)

    def _publish(self, spec: GenerateSpec, timings: dict[str, float], words: dict[str, str]) -> Clip:
        clips = [self._write(spec, index, timings, words) for index in range(spec.n)]
        return replace(clips[0], variants=tuple(clips[1:]))

    def _write(self, spec: GenerateSpec, index: int, timings: dict[str, float], words: dict[str, str]) -> Clip:
        seed = spec.sampling.seed + index
        told = f"{spec.task} {spec.width}x{spec.height}x{spec.frames} seed {seed} "
        inputs = [guide.picture.path.read_bytes() for guide in spec.guides if guide.picture]
        data = told.encode() + b"".join(inputs) + bytes(range(256)) * 8
        part = spec.scratch / "clip.part"
        part.write_bytes(data)
        output = variant_path(spec.output, index, spec.n)
        part.replace(output)
        latents = output.with_name(output.name + LATENTS_SUFFIX) if spec.save_latents else None
        if latents is not None:
            latents.write_bytes(b"latents")
        return Clip(
            output=output,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            width=spec.width,
            height=spec.height,
            frames=spec.frames,
            samples=100,
            seed=seed,
            forwards=spec.sampling.steps,
            attention=spec.attention or "sdpa",
            linear=spec.linear or "dequant",
            timings=timings if index == 0 else {},
            memory={"peak_sampling_allocated_bytes": 1} if index == 0 else {},
            checks={"video": Check({"black": False}), "audio": Check({"rms": 0.1}, (("warn", "quiet"),))},
            warnings=("odd",) if "warn" in words else (),
            latents_output=latents,
            diagnostics={"forwards": spec.sampling.steps} if spec.diagnostics else None,
        )

    def _hold(self, words: dict[str, str], last: Progress, on_progress: OnProgress, should_stop: ShouldStop) -> None:
        """However fast the machine is: whoever asked decides when it goes on."""
        while "hold" in words or ("until" in words and not Path(words["until"]).exists()):
            if should_stop():
                raise JobCancelled("stopped", stage=last.stage, step=last.step)
            if "step_seconds" in words:
                on_progress(last)
            time.sleep(float(words.get("step_seconds", "0.01")))

    def _misbehave(self, stage: str, step: int, words: dict[str, str]) -> None:
        if words.get("fail_at") == stage:
            raise EncoderFailed("the encoder ended with status 1", stage=stage, step=step)
        if words.get("bug_at") == stage:
            raise ValueError("/secret/path")
        if words.get("full_at") == stage:
            raise OSError(errno.ENOSPC, "No space left on device")
        if words.get("wedge_at") == stage:
            raise EngineDead("the device is lost")
        if words.get("die_at") == stage:
            os._exit(3)
        if words.get("segfault_at") == stage:
            os.kill(os.getpid(), signal.SIGSEGV)
        if words.get("orphan_at") == stage:
            child = subprocess.Popen(["sleep", str(FOREVER)], process_group=0)
            self._note(f"child {child.pid}")
            time.sleep(FOREVER)
        if words.get("hang_at") == stage:
            time.sleep(FOREVER)

    def _note(self, line: str) -> None:
        if self.journal is not None:
            with self.journal.open("a") as file:
                file.write(f"{os.getpid()} {line}\n")


def words_of(spec: GenerateSpec) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in spec.prompt.split())


def png(shade: int) -> bytes:
    """One grey pixel, as a whole PNG."""
    parts = (
        (b"IHDR", struct.pack(">2I5B", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes((0, shade % 256)))),
        (b"IEND", b""),
    )
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def create(
    load_seconds: float = 0.0, load_fault: str = "", journal: Path | None = None, gates: Path | None = None
) -> FakeEngine:
    return FakeEngine(load_seconds, load_fault, journal, gates)


def create_for_serve(settings: object, threads: int) -> FakeEngine:  # noqa: ARG001  # what `serve` passes
    return FakeEngine()

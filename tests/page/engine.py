"""The fake engine with what a page shows: clips that a browser plays, and a look at each step.

Steered by the same words of the prompt.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from h3runtime.core import Clip, Estimate, GenerateSpec, OnProgress, Progress, ShouldStop, Work, variant_path
from tests.fake_engine import FakeEngine

HUES = 4
"""Clips of different seeds look different, but no more different than this: each is made once."""
FFMPEG = shutil.which("ffmpeg") or "ffmpeg"


def preview(step: int, steps: int) -> bytes:
    """A picture that gets lighter."""
    file = io.BytesIO()
    light = 40 + 180 * step // max(1, steps)
    Image.linear_gradient("L").resize((96, 56)).point(lambda v: (v + light) // 2).save(file, "PNG")
    return file.getvalue()


def play_clip(path: Path, width: int, height: int, frames: int, hue: int, kind: str = "mp4") -> None:
    """H.264 and AAC, with a moving picture."""
    path.write_bytes(made_clip(width, height, frames, hue % HUES, kind))


@lru_cache
def made_clip(width: int, height: int, frames: int, hue: int, kind: str) -> bytes:
    seconds = f"{frames / 24:.4f}"
    picture = f"testsrc2=size={width}x{height}:rate=24:duration={seconds},hue=h={hue * 360 // HUES}"
    sound = f"sine=frequency={220 + 110 * hue}:sample_rate=32000:duration={seconds}"
    inputs = ["-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", sound]
    codecs = [
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-pix_fmt",
        "yuv420p",
        "-c:a",
        "aac",
        "-movflags",
        "+faststart",
    ]
    command = [FFMPEG, "-v", "error", "-y", *inputs, *codecs, "-f", kind]
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([*command, file.name], check=True, stdin=subprocess.DEVNULL)
        return Path(file.name).read_bytes()


def sound(path: Path, seconds: float) -> None:
    command = [
        FFMPEG,
        "-v",
        "error",
        "-y",
        "-f",
        "lavfi",
        "-i",
        f"sine=duration={seconds}:sample_rate=48000",
        str(path),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


class PageEngine(FakeEngine):
    """Overrides what the stages tell and what they leave."""

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip:
        def shown(progress: Progress) -> None:
            looks = progress.stage == "sampling"
            picture = preview(progress.step, progress.steps) if looks else None
            fraction = 0.1 + 0.7 * progress.step / max(1, progress.steps) if looks else progress.fraction
            left = 0.1 * (progress.steps - progress.step) + 0.5
            on_progress(replace(progress, fraction=fraction, eta_seconds=left, preview=picture))

        return super().generate(spec, shown, should_stop)

    def estimate(self, spec: GenerateSpec) -> Estimate:
        rows = {"text": 40, "audio": 66, "video": spec.width * spec.height * spec.frames // 4096}
        peak = sum(rows.values()) * 10_000
        return Estimate(rows, spec.sampling.steps, Work({"sampling": 1e9}), {"weights": 10}, peak, 2**30, "")

    def _publish(self, spec: GenerateSpec, timings: dict[str, float], words: dict[str, str]) -> Clip:
        clips = [self._clip(spec, index, timings, words) for index in range(spec.n)]
        return replace(clips[0], variants=tuple(clips[1:]))

    def _clip(self, spec: GenerateSpec, index: int, timings: dict[str, float], words: dict[str, Any]) -> Clip:
        path, seed = variant_path(spec.output, index, spec.n), (spec.sampling.seed + index) % 2**64
        one = replace(spec, n=1, output=path, sampling=replace(spec.sampling, seed=seed))
        clip = super()._publish(one, timings, words)
        play_clip(path, spec.width, spec.height, spec.frames, seed)
        if index == 0 and spec.tail is not None:
            play_clip(spec.tail.path, spec.width, spec.height, spec.tail.frames, seed, "matroska")
        data = path.read_bytes()
        return replace(clip, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def create(load_seconds: float = 0.0) -> PageEngine:
    return PageEngine(load_seconds)

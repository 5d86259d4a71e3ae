"""Predicted against measured peaks of memory: `memory_model.py [--device cuda] [--layout nvfp4 bf16] [--tiny]`.

Runs requests of the published sizes through an engine of zero weights (`zero_engine`), a step or two each, and prints
one JSON object a request as soon as it is done: rows, predicted and measured peak, both above what the engine holds,
and every stage. A request that fails prints its error; the others run. About three minutes on an H200.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.made_media import write_clip, write_picture, write_sound
from benchmarks.zero_engine import zero_engine
from h3runtime.core import (
    ClipInput,
    GenerateSpec,
    MediaFile,
    ReferenceInput,
    SamplerSettings,
    SoundInput,
    Task,
)
from h3runtime.engine.resident import ResidentEngine


@dataclass(frozen=True)
class Case:
    """quick: run with every layout."""

    width: int
    height: int
    frames: int
    steps: int
    references: bool = False
    prompt: str = "a red ball bouncing on a blue floor"
    quick: bool = True
    n: int = 1

    @property
    def name(self) -> str:
        told = f"{self.width}x{self.height}x{self.frames}, {self.steps} steps"
        return (
            told + ", references" * self.references + ", long text" * (len(self.prompt) > 1000) + ", n" * (self.n > 1)
        )


CASES = (
    Case(320, 192, 22, 12),
    Case(1344, 768, 124, 2),
    Case(960, 544, 124, 1, references=True),
    Case(960, 544, 124, 2),
    Case(320, 192, 22, 1, prompt="word " * 1300),
    Case(864, 480, 141, 1, quick=False),
    Case(320, 192, 22, 1, quick=False, n=2),
    Case(1344, 768, 362, 1, quick=False),
)
SMALL = (Case(64, 64, 5, 1), Case(128, 96, 22, 2), Case(128, 96, 22, 1, references=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layout", nargs="+", choices=("nvfp4", "bf16"), default=("nvfp4", "bf16"))
    parser.add_argument("--tiny", action="store_true", help="small models and requests, to try the script itself")
    given = parser.parse_args()
    for index, layout in enumerate(given.layout):
        with tempfile.TemporaryDirectory() as folder:
            cases = SMALL if given.tiny else tuple(case for case in CASES if case.quick or index == 0)
            for told in measured(given.device, layout, cases, Path(folder), tiny=given.tiny):
                print(json.dumps({"layout": layout, **told}), flush=True)


def measured(
    device: str, layout: Any, cases: tuple[Case, ...], folder: Path, *, tiny: bool = False
) -> Iterator[dict[str, Any]]:
    began = time.monotonic()
    engine = zero_engine(device, layout, folder, tiny=tiny)
    warm_up(engine, folder)
    yield {"held_bytes": held(engine), "made_seconds": round(time.monotonic() - began, 1)}
    for case in cases:
        try:
            yield {"case": case.name, **figures(engine, spec_of(case, folder))}
        except Exception as error:
            yield {"case": case.name, "error": f"{type(error).__name__}: {error}"}
    engine.close()
    del engine
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def warm_up(engine: ResidentEngine, folder: Path) -> None:
    """As an engine does before it is ready: workspaces of libraries are there from then on."""
    engine.generate(spec_of(Case(64, 64, 5, 1), folder), lambda _: None, lambda: False)
    engine.estimator.begin()


def held(engine: ResidentEngine) -> int:
    told = engine.estimate(spec_of(Case(64, 64, 5, 1), Path("/"))).memory
    return told["weights_bytes"] + told["process_bytes"]


def figures(engine: ResidentEngine, spec: GenerateSpec) -> dict[str, Any]:
    """`ratio`: predicted / measured; `above`: the same without what the engine holds anyway."""
    estimate = engine.estimate(spec)
    base = estimate.memory["weights_bytes"] + estimate.memory["process_bytes"]
    began = time.monotonic()
    clip = engine.generate(spec, lambda _: None, lambda: False)
    peak = clip.memory["peak_allocated_bytes"]
    stages = {
        name.removeprefix("peak_").removesuffix("_allocated_bytes"): count - base
        for name, count in clip.memory.items()
        if name.endswith("_allocated_bytes") and name != "peak_allocated_bytes"
    }
    return {
        "rows": sum(estimate.rows.values()),
        "predicted_bytes": estimate.peak_bytes,
        "measured_bytes": peak,
        "reserved_bytes": clip.memory["peak_reserved_bytes"],
        "capacity_bytes": estimate.capacity_bytes,
        "ratio": round(estimate.peak_bytes / peak, 4),
        "above": round((estimate.peak_bytes - base) / max(1, peak - base), 3),
        "predicted": {
            name: count for name, count in estimate.memory.items() if name.startswith(("cond", "samp", "dec"))
        },
        "measured_above": stages,
        "seconds": round(time.monotonic() - began, 2),
        "timings": {stage: round(seconds, 2) for stage, seconds in clip.timings.items()},
    }


def spec_of(case: Case, folder: Path) -> GenerateSpec:
    spec = GenerateSpec(
        job_id="memory",
        task=Task.T2VA,
        prompt=case.prompt,
        width=case.width,
        height=case.height,
        frames=case.frames,
        sampling=SamplerSettings(steps=case.steps, seed=1),
        output=folder / "clip.mp4",
        scratch=folder,
        n=case.n,
        overwrite=True,
    )
    if not case.references:
        return spec
    return replace(spec, task=Task.REF2VA, references=tuple(references(folder, case.width, case.height)))


def references(folder: Path, width: int, height: int) -> Iterator[ReferenceInput]:
    """Two pictures, a clip of 39 frames with its track on the target's canvas, a voice of three seconds."""
    for index in range(2):
        name = f"references[{index}]"
        picture = write_picture(folder / f"{index}.png", width, height, index)
        yield ReferenceInput(name, "image", width, height, picture=MediaFile(picture, name))
    clip = MediaFile(write_clip(folder / "clip-in.mp4", width, height, 39 / 24 + 0.1, sound=True), "references[2]")
    yield ReferenceInput("references[2]", "video", width, height, clip=ClipInput(clip, 0, 39), sound=SoundInput(clip))
    voice = MediaFile(write_sound(folder / "voice.wav", 3.0), "references[3]")
    yield ReferenceInput("references[3]", "audio", sound=SoundInput(voice))


if __name__ == "__main__":
    main()

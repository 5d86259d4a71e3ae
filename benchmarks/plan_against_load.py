"""A plan beside a real load, component by component: `plan_against_load.py FOLDER [--linear NAME] [--clip WxHxF]`.

FOLDER has an `h3.env` (`h3runtime synth FOLDER --format nvfp4 --full-size --partition both`), or is made of holes with
`--holes FORMAT`: published headers whose large weights are made on the device (`made_set`), so that nothing is read or
stored. The plan is `h3runtime plan`'s own of these files on this device, with the allocator's rounding; what is
measured is what PyTorch's allocator counts while each component loads. What a driver takes beside that is told too,
before and after a clip is made. One JSON object; `off` is measured over planned, less 1. Exit code 1 if a component is
off by more than 2 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import made_set
from h3runtime.backends.linear.select import choose_vae_linear
from h3runtime.checkpoint import load
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.synthetic.published import FORMATS
from h3runtime.cli.report import say
from h3runtime.core import ComponentFacts, GenerateSpec, SamplerSettings, Task
from h3runtime.engine.places import place_named
from h3runtime.engine.planned_set import named_parts
from h3runtime.engine.planning import Plan, plan
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.observe import memory
from h3runtime.settings import PARTITION_PATHS, Settings, resolve

WITHIN: Final = 0.02


def main() -> int:
    given = _arguments()
    with _settings(given) as settings:
        began = time.perf_counter()
        planned = _planned(settings)
        told: dict[str, Any] = {"linear": planned.shown.linear.name, "plan_seconds": time.perf_counter() - began}
        told |= _loaded(settings, planned, given)
    print(json.dumps(told, indent=1), flush=True)
    return int(any(abs(part["off"]) > WITHIN for part in told["components"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--holes", choices=FORMATS, help="Make FOLDER, of both partitions in that format.")
    parser.add_argument("--linear", default="auto")
    parser.add_argument("--clip", metavar="WxHxF", help="Make a clip of one step, too.")
    return parser.parse_args()


@contextmanager
def _settings(given: argparse.Namespace) -> Iterator[Settings]:
    flags: dict[str, Any] = {"linear": given.linear, "warmup_shapes": ()}
    with tempfile.TemporaryDirectory() as folder:
        flags["data_dir"] = Path(folder)
        if given.holes is None:
            yield resolve(flags, given.folder / "h3.env")
            return
        flags |= made_set.holes(given.folder, given.holes, partitions=tuple(PARTITION_PATHS))
        with patch.object(load, "stream", made_set.stream):
            yield resolve(flags)


def _planned(settings: Settings) -> Plan:
    place = place_named("here", settings)
    vae_linear, _ = choose_vae_linear(settings.vae_linear, place.device)
    return plan(named_parts(settings, COMPUTE_DTYPE, vae_linear), place, settings)


def _loaded(settings: Settings, planned: Plan, given: argparse.Namespace) -> dict[str, Any]:
    outside: dict[str, dict[str, int]] = {}
    taken: list[tuple[ComponentFacts, int]] = []
    engine = ResidentEngine(
        settings,
        warm_up=False,
        profile_memory=True,
        on_component=lambda facts: taken.append((facts, torch.cuda.memory_allocated())),
    )
    device = engine.device
    torch.ones(1, device=device).add_(1)
    outside["at first"], before = _outside(device), torch.cuda.memory_allocated(device)
    say(f"plan: {planned.shown.linear.name}; loading")
    began = time.perf_counter()
    engine.load(lambda _: None)
    seconds = time.perf_counter() - began
    outside["loaded"] = _outside(device)
    levels = [before, *(level for _, level in taken)]
    components = [
        _beside(line.name, line.allocated, after - level)
        for line, level, after in zip(planned.shown.weights, levels, levels[1:], strict=False)
    ]
    told: dict[str, Any] = {"load_seconds": seconds, "components": components}
    told["total"] = _beside("all", sum(line.allocated for line in planned.shown.weights), levels[-1] - before)
    told["held_bytes"] = torch.cuda.memory_allocated(device)
    if given.clip:
        told["clip"] = _clip(engine, given.clip)
        outside["clip made"] = _outside(device)
        told["held_after_clip_bytes"] = torch.cuda.memory_allocated(device)
    told["outside_the_allocator"] = outside
    engine.close()
    return told


def _beside(name: str, planned: int, measured: int) -> dict[str, Any]:
    return {"name": name, "planned": planned, "measured": measured, "off": round(measured / planned - 1, 6)}


def _outside(device: torch.device) -> dict[str, int]:
    """What the driver has taken that the allocator hasn't, and what this process has on the host."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    host = memory.resident_bytes()
    return {"total": total, "free": free, "reserved": reserved, "outside": total - free - reserved, "host": host}


def _clip(engine: ResidentEngine, shape: str) -> dict[str, Any]:
    width, height, frames = (int(number) for number in shape.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        spec = GenerateSpec(
            job_id="plan",
            task=Task.T2VA,
            prompt="A night market after rain. " * 16,
            width=width,
            height=height,
            frames=frames,
            sampling=SamplerSettings(steps=1),
            output=Path(folder, "clip.mp4"),
            scratch=Path(folder),
        )
        predicted = engine.estimate(spec)
        clip = engine.generate(spec, lambda _: None, lambda: False)
        assert sha256_of(clip.output) == clip.sha256
    return {
        "shape": shape,
        "rows": dict(predicted.rows),
        "predicted": dict(predicted.memory),
        "capacity_bytes": predicted.capacity_bytes,
        "measured": dict(clip.memory),
        "timings": dict(clip.timings),
    }


if __name__ == "__main__":
    sys.exit(main())

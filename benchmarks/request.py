"""A whole request through HTTP: `request.py [--frames F] [--runs N] [--output R.json] [settings]`.

Starts `h3runtime serve` as an operator would, waits until it is ready, and asks for one clip after another, each with
its own seed. Prints a table and, with `--output`, writes JSON. Does not judge.

    cold       from the start of the process to its first answer that it is ready
    first      the first clip: it pays for what is initialised late
    warm       the clips after it, median, least and most; the same prompt, so its text is in the cache
    fresh      one with a prompt that no cache knows
    total      from the request's first byte to the last one of the clip, as a client sees it
    stages     seconds of each as the job tells them; `rest` is what the total has beyond them: the line, HTTP, the file
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import this_runtime
from benchmarks.script import positive
from benchmarks.served import Server, until
from h3runtime.cli.report import say

PROMPT: Final = "a red ball bouncing on a blue floor"
FRESH: Final = "a green cube turning above a white floor"
ENDED: Final = ("succeeded", "failed", "cancelled", "expired")
SEED: Final = 440_407


@dataclass(frozen=True, slots=True)
class Asked:
    width: int
    height: int
    frames: int
    steps: int
    runs: int


@dataclass(frozen=True, slots=True)
class Made:
    """One clip. total, stages, rest: seconds. bytes: of the file."""

    total: float
    stages: Mapping[str, float]
    rest: float
    bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    given, flags = _parser().parse_known_args(arguments)
    asked = Asked(given.width, given.height, given.frames, given.steps, given.runs)
    with tempfile.TemporaryDirectory(prefix="h3-request-") as folder:
        report = measure(asked, Path(folder), given.engine, _settings(flags))
    print(table(report))
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=2) + "\n")
        say(f"{given.output}: written")
    return 0


def measure(asked: Asked, folder: Path, engine: str | None, settings: Mapping[str, str]) -> dict[str, Any]:
    """The report, ready for JSON. engine: see `Server`."""
    began = time.monotonic()
    with Server(folder, engine, **settings) as server:
        server.ready()
        cold = time.monotonic() - began
        return _report(asked, cold, clips(server, asked), server.ask("GET", "/ready").json)


def clips(server: Server, asked: Asked) -> dict[str, list[Made]]:
    """The first one, the warm ones, a fresh one."""
    first, *warm = (make(server, asked, PROMPT, SEED + index) for index in range(asked.runs + 1))
    return {"first": [first], "warm": warm, "fresh": [make(server, asked, FRESH, SEED)]}


def make(server: Server, asked: Asked, prompt: str, seed: int) -> Made:
    """RuntimeError for a request that is refused, and for a job that doesn't succeed."""
    sizes = {"width": asked.width, "height": asked.height, "frames": asked.frames, "steps": asked.steps}
    began = time.monotonic()
    path = f"/jobs/{server.submit({'prompt': prompt, 'seed': seed, **sizes})}"
    job = until(lambda: found if (found := server.ask("GET", path).json)["status"] in ENDED else None, 3600.0, 0.01)
    assert job is not None
    if job["status"] != "succeeded":
        raise RuntimeError(f"{path}: {job['status']}: {job.get('error')}")
    clip = server.ask("GET", f"{path}/content")
    total = time.monotonic() - began
    stages = {name: seconds for name, seconds in job["timings"].items() if name != "total"}
    return Made(total, stages, total - sum(stages.values()), len(clip.body))


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown; seconds."""
    stages = list(report["clips"]["first"][0]["stages"])
    head = ["", "clips", "total", "least..most", *stages, "rest"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, made in report["clips"].items():
        totals = [clip["total"] for clip in made]
        cells = [name, str(len(made)), f"{median(totals):.3f}", f"{min(totals):.3f}..{max(totals):.3f}"]
        cells += [f"{median(clip['stages'].get(stage, 0.0) for clip in made):.3f}" for stage in stages]
        lines.append("| " + " | ".join([*cells, f"{median(clip['rest'] for clip in made):.3f}"]) + " |")
    return "\n".join([*lines, "", f"cold start: {report['cold_seconds']:.2f} s"])


def _report(asked: Asked, cold: float, made: dict[str, list[Made]], ready: dict[str, Any]) -> dict[str, Any]:
    return {
        "recorded_at": datetime.now(UTC).isoformat(),
        "runtime": this_runtime().model_dump(),
        "asked": asdict(asked),
        "cold_seconds": cold,
        "ready": ready,
        "clips": {name: [asdict(clip) for clip in each] for name, each in made.items()},
    }


def _settings(flags: Sequence[str]) -> dict[str, str]:
    """`--name value` pairs of `h3runtime serve`, by field name."""
    if len(flags) % 2 or not all(flag.startswith("--") for flag in flags[::2]):
        raise SystemExit(f"settings are pairs of --name and value, not {' '.join(flags)}")
    return {flag[2:].replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="request.py",
        description="Time whole requests through HTTP. Any setting of `h3runtime serve` may follow as --name value.",
    )
    parser.add_argument("--width", type=int, default=192, metavar="W", help="Default: 192, as the demo's clip.")
    parser.add_argument("--height", type=int, default=192, metavar="H", help="Default: 192.")
    parser.add_argument("--frames", type=int, default=39, metavar="F", help="Default: 39.")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="Default: 12.")
    parser.add_argument("--runs", type=positive, default=3, metavar="N", help="Warm clips. Default: 3.")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())

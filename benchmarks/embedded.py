"""The embedded model's request on this CPU, beside another checkout's: `embedded.py OLD [--runs N] [--output R.json]`.

Runs the same command with both checkouts in turn, `h3runtime demo --overwrite`, with one numeric thread, the same
weights (this checkout's, derived once into a folder and named by H3_MODEL_PATH and its like) and no memory of earlier
runs but each checkout's own compiled modules. Prints a table and, with `--output`, writes JSON. Does not judge.

    command   seconds of CPU of the whole process and of the encoders it starts; and of the clock
    request   `timings.total` and the stages of the command's own JSON, by the clock
    ratio     old over new of the least and of the medians; spread: least and most of the runs that were neighbours

On a machine that others use too, seconds of CPU and the least of many runs count. Whether both made the same file is
told below the table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
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
from h3runtime.cli.report import say

HERE: Final = Path(__file__).resolve().parents[1]
WARM_UPS: Final = 1
"""Of each checkout, unmeasured: they compile its modules and bring its files into memory."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One command. cpu: user and system seconds of it and its children. request: seconds by stage, `total` last."""

    cpu: float
    wall: float
    request: Mapping[str, float]
    clip: str


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="h3-embedded-") as folder:
        runs = measure({"old": given.old.resolve(), "new": HERE}, Path(folder), given.runs)
    print(table(runs))
    if given.output is not None:
        given.output.write_text(json.dumps(_report(given.old, runs), indent=2) + "\n")
        say(f"{given.output}: written")
    return 0


def measure(checkouts: Mapping[str, Path], folder: Path, runs: int) -> dict[str, list[Ran]]:
    """The runs of each checkout, in turn. RuntimeError for one that fails."""
    weights = _weights(folder / "weights")
    found: dict[str, list[Ran]] = {name: [] for name in checkouts}
    for index in range(WARM_UPS + runs):
        for name, checkout in checkouts.items():
            ran = _run(checkout, folder / name, weights)
            if index >= WARM_UPS:
                found[name].append(ran)
    return found


def table(runs: Mapping[str, Sequence[Ran]]) -> str:
    """For people, in Markdown; seconds."""
    lines = ["| | old least | median | new least | median | ratio of least | of medians | spread |", "|" + "---|" * 8]
    old, new = runs["old"], runs["new"]
    rows = {"command, CPU": _values(runs, "cpu"), "command, wall": _values(runs, "wall")}
    rows |= {f"request, {stage}": _stage(runs, stage) for stage in new[0].request}
    for name, (before, after) in rows.items():
        ratios = [a / b for a, b in zip(before, after, strict=True)]
        least, middle = min(before) / min(after), median(before) / median(after)
        numbers = [min(before), median(before), min(after), median(after)]
        cells = [f"{n:.3f}" for n in numbers] + [f"{least:.2f}x", f"{middle:.2f}x"]
        lines.append("| " + " | ".join([name, *cells, f"{min(ratios):.2f}..{max(ratios):.2f}"]) + " |")
    same = "the same bytes" if old[0].clip == new[0].clip else "other bytes"
    return "\n".join([*lines, "", f"{len(new)} runs of each in turn, one thread; both clips have {same}"])


def _values(runs: Mapping[str, Sequence[Ran]], name: str) -> tuple[list[float], list[float]]:
    before, after = ([float(getattr(ran, name)) for ran in runs[which]] for which in ("old", "new"))
    return before, after


def _stage(runs: Mapping[str, Sequence[Ran]], stage: str) -> tuple[list[float], list[float]]:
    before, after = ([ran.request[stage] for ran in runs[which]] for which in ("old", "new"))
    return before, after


def _weights(folder: Path) -> dict[str, str]:
    """The embedded set, and the variables that name its files."""
    command = [sys.executable, "-m", "h3runtime", "synth", "--nano", "--format", "nvfp4", "--partition", "both"]
    subprocess.run([*command, "--quiet", str(folder)], check=True, cwd=HERE)
    lines = (folder / "h3.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def _run(checkout: Path, folder: Path, weights: Mapping[str, str]) -> Ran:
    folder.mkdir(exist_ok=True)
    clip = folder / "clip.mp4"
    command = [sys.executable, "-m", "h3runtime", "demo", "--overwrite", "--output", str(clip)]
    before, began = _children(), time.monotonic()
    told = environment(checkout, folder, weights)
    done = subprocess.run(command, cwd=folder, env=told, capture_output=True, text=True, check=False)
    wall, cpu = time.monotonic() - began, _children() - before
    if done.returncode != 0:
        raise RuntimeError(f"{checkout}: {done.stderr.strip()}")
    timings = json.loads(done.stdout)["timings"]
    return Ran(cpu, wall, timings, hashlib.sha256(clip.read_bytes()).hexdigest())


def environment(checkout: Path, folder: Path, weights: Mapping[str, str]) -> dict[str, str]:
    """Modules of the checkout come first and are compiled once, as an installation's are."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {"PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    return {**kept, **weights, **own, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _report(old: Path, runs: Mapping[str, Sequence[Ran]]) -> dict[str, Any]:
    return {
        "recorded_at": datetime.now(UTC).isoformat(),
        "runtime": this_runtime().model_dump(),
        "old": _commit(old),
        "new": _commit(HERE),
        "runs": {name: [asdict(ran) for ran in each] for name, each in runs.items()},
    }


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="embedded.py", description="Time the demo of this checkout and of another one in turn."
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="Folder of the other checkout, of a clone for example.")
    parser.add_argument("--runs", type=positive, default=7, metavar="N", help="Of each. Default: 7.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())

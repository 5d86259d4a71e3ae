"""Every figure of a machine in one table: `table.py OUT [--quick] [--peer diffusers] [--request FLAGS]`, `--from OUT`.

Runs the scripts of one question each, one after another, as processes of their own: a script that fails, or takes
longer than it may, is told and costs itself alone. OUT gets each one's JSON and log, and `runs.json`, which says how
they ended; `--from OUT` prints the same table from there and runs nothing. Reports that were written by hand count too,
if they lie there under a part's name. The exit status is 1 if a script failed or left no report. Computes no figure
itself: `table_rows` reads them.

    attention, gemm, elementwise, vae     the scripts of those names
    block, block_fp8                      `h3runtime profile block --made-up`, blocks 0, 24, 49; with FP8 products
    step                                  `step.py`: lanes, floors, loops; with a peer also compiled
    medium                                `step.py`: whole samplings of 12 steps, sparse attention, reuse, and both
    request                               `request.py` with FLAGS, only where it is asked for

On an H200 about sixteen minutes with the peer, eight with `--quick`: one round, one sampling of medium and of the peer,
and no compiled peer. `--only` may take it in several runs: what OUT has of other parts stays in the table. `--sizes
small` is a look without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.attention import PEERS
from benchmarks.script import names
from benchmarks.table_rows import READERS, Run, table
from h3runtime.cli.report import say

ROOT: Final = Path(__file__).resolve().parents[1]
RUNS: Final = "runs.json"
REUSED: Final = "3+5+7+9+10"
"""Of 12 steps: as many as the rule of `medium` reused in the median of h3-nano's clips of 9,310 rows (LOG.md)."""
MEDIUM: Final = f"medium@{REUSED}"
SAMPLINGS: Final = (MEDIUM, *PEERS, MEDIUM, MEDIUM, f"reuse@{REUSED}", "sparse")
GRACE: Final = 10.0
"""Seconds between asking a process to end and ending it."""


@dataclass(frozen=True, slots=True)
class Part:
    """command: without its output. seconds: that it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Asked:
    """peer: "" for none. request: flags of `request.py`, None to leave it out."""

    quick: bool
    small: bool
    device: str
    peer: str
    request: tuple[str, ...] | None


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    folder: Path = given.read or given.folder
    try:
        if given.read is None:
            folder.mkdir(parents=True, exist_ok=True)
            parts = [part for part in parts_of(_asked(given)) if not given.only or part.name in given.only]
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
            run_all(parts, folder)
        runs = read_runs(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        say(f"error: {folder}: {error}")
        return 1
    if not runs:
        say(f"error: {folder}: no report lies there")
        return 1
    text, whole = table(folder, runs)
    print(text, flush=True)
    return 0 if whole else 1


def parts_of(asked: Asked) -> list[Part]:
    """In the order in which they run: kernels before what is made of them."""
    device, peer = ("--device", asked.device), (("--peer", asked.peer) if asked.peer else ())
    runs = ("--runs", "2" if asked.quick or asked.small else "5")
    kernels = [
        Part("attention", (*_script("attention"), *peer, *runs, *device, *_small(asked, "attention")), 300),
        Part("gemm", (*_script("gemm"), *peer, *runs, *device, *_small(asked, "gemm")), 150),
        Part("elementwise", (*_script("elementwise"), *runs, *device, *_small(asked, "elementwise")), 120),
        *(Part(name, (*_block(name, asked), *runs, *device), 90) for name in ("block", "block_fp8")),
    ]
    vae = Part("vae", (*_script("vae"), *peer, *_rounds(asked, "--runs"), *device, *_small(asked, "vae")), 420)
    found = [
        *kernels,
        Part("step", (*_step(asked), *device), 360),
        Part("medium", (*_medium(asked), *device), 360),
        vae,
    ]
    if asked.request is not None:
        found.append(Part("request", (*_script("request"), *asked.request), 420))
    return found


def _script(name: str) -> tuple[str, ...]:
    return sys.executable, str(ROOT / "benchmarks" / f"{name}.py")


def _small(asked: Asked, name: str) -> tuple[str, ...]:
    return SMALL[name] if asked.small else ()


SMALL: Final = {
    "attention": ("--rows", "96", "--heads", "2", "--head-dim", "32"),
    "gemm": ("--rows", "33", "--shrink", "84"),
    "elementwise": (
        "--rows",
        "96",
        "--width",
        "64",
        "--heads",
        "2",
        "--head-dim",
        "32",
        "--ffn",
        "96",
        "--turning",
        "12",
    ),
    "vae": ("--sizes", "small", "--width", "32", "--height", "32", "--frames", "22"),
}


def _rounds(asked: Asked, flag: str) -> tuple[str, ...]:
    return (flag, "1") if asked.quick or asked.small else ()


def _block(name: str, asked: Asked) -> tuple[str, ...]:
    blocks = (sys.executable, "-m", "h3runtime", "profile", "block", "--quiet", "--overwrite")
    made = () if asked.small else ("--made-up", "--blocks", "0,24,49")
    return (*blocks, *made, *(("--linear", "fp8") if name == "block_fp8" else ()))


def _step(asked: Asked) -> tuple[str, ...]:
    peer = ("--peer", asked.peer) if asked.peer else ()
    compiled = ("--peer-compiled",) if asked.peer and not (asked.quick or asked.small) else ()
    return (*_script("step"), *peer, *compiled, *_rounds(asked, "--rounds"), *_step_sizes(asked, 240))


def _medium(asked: Asked) -> tuple[str, ...]:
    peer = ("--peer", asked.peer) if asked.peer else ()
    order = SAMPLINGS[:2] if asked.quick else SAMPLINGS
    samplings = ",".join(name for name in order if name not in PEERS or asked.peer)
    lanes = ("--lanes", "high,reuse,sparse,medium", "--samplings", samplings)
    forwards = ("--rounds", "1", "--steps", "0", "--no-floor", *(("--sampling-steps", "4") if asked.small else ()))
    return (*_script("step"), *lanes, *peer, *forwards, *_step_sizes(asked, 340))


def _step_sizes(asked: Asked, seconds: int) -> tuple[str, ...]:
    if asked.small:
        return "--sizes", "small", "--workload", "smoke-320x192-22f"
    return "--seconds", str(seconds)


def run_all(parts: Sequence[Part], folder: Path) -> None:
    """Each one's log and JSON into `folder`; what was there of it before is removed, what of others is kept."""
    own = {part.name for part in parts}
    known = [one for one in read_runs(folder) if one.name not in own]
    for part in parts:
        (folder / f"{part.name}.json").unlink(missing_ok=True)
    for part in parts:
        known.append(run(part, folder))
        say(f"{part.name}: {known[-1].told}, {known[-1].seconds:.0f} s")
        (folder / RUNS).write_text(json.dumps([asdict(one) for one in known], indent=2) + "\n")


def run(part: Part, folder: Path) -> Run:
    """To its end, or to that of its time. Its processes are a group, which ends as a whole."""
    began = time.monotonic()
    command = [*part.command, "--output", str(folder / f"{part.name}.json")]
    with (folder / f"{part.name}.log").open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            status = child.wait(part.seconds)
            told = "done" if status == 0 else f"status {status}"
        except subprocess.TimeoutExpired:
            told = f"took longer than {part.seconds:g} s"
        finally:
            _end(child)
    return Run(part.name, told == "done", told, time.monotonic() - began, shlex.join(command))


def _end(child: subprocess.Popen[bytes]) -> None:
    """And whatever it has started. Who doesn't end even then is left to the system: this goes on."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
            if number == signal.SIGKILL:
                return


def read_runs(folder: Path) -> list[Run]:
    """In the order of the table; a report that no run tells of was written by hand."""
    path = folder / RUNS
    runs = [Run(**one) for one in json.loads(path.read_text())] if path.exists() else []
    told = {one.name for one in runs}
    lone = (name for name in READERS if name not in told and (folder / f"{name}.json").exists())
    runs += [Run(name, True, "done", 0.0, "") for name in lone]
    return sorted(runs, key=lambda one: list(READERS).index(one.name))


def _asked(given: argparse.Namespace) -> Asked:
    request = None if given.request is None else tuple(shlex.split(given.request))
    return Asked(given.quick, given.sizes == "small", given.device, given.peer or "", request)


def _parts(text: str) -> tuple[str, ...]:
    found = names(text)
    if unknown := [name for name in found if name not in READERS]:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)} (legal: {', '.join(READERS)})")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="table.py", description="Measure a machine and print one table.")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("folder", type=Path, nargs="?", metavar="OUT", help="Where JSON and logs go.")
    place.add_argument("--from", dest="read", type=Path, metavar="OUT", help="Print what lies there and run nothing.")
    parser.add_argument("--quick", action="store_true", help="One round, no compiled peer.")
    parser.add_argument("--peer", choices=PEERS, help="Ratios against it, where there are any.")
    parser.add_argument("--only", type=_parts, default=(), metavar="A,B", help=f"Of {', '.join(READERS)}.")
    parser.add_argument("--request", nargs="?", const="", metavar="FLAGS", help="Also run request.py with these flags.")
    parser.add_argument("--sizes", choices=("published", "small"), default="published", help="Default: published.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N. Default: auto.")
    return parser


if __name__ == "__main__":
    sys.exit(main())

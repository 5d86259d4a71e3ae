"""One run of `quality` or `upscale` in several processes, each with one thread: every Nth prompt to each.

Small tensors gain nothing from a second thread, and an accelerator is idle most of the time that a small model is on
it. Parts share the folder of results and nothing else, so that a run that was stopped goes on with any number of them.
Fed by `quality` and `upscale`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).with_name("quality.py")


def part_arguments(arguments: Sequence[str], processes: int) -> list[list[str]]:
    """Of each process: as the command was given, with a part of its own. Of a flag given twice the last counts."""
    alone = ["--processes", "1", "--threads", "1"]
    return [[*arguments, *alone, "--part", f"{part}/{processes}"] for part in range(processes)]


def run_parts(arguments: Sequence[str], processes: int, script: Path = SCRIPT) -> None:
    """To the end of all. SystemExit if one fails; the others are then ended."""
    running = [subprocess.Popen([sys.executable, str(script), *part]) for part in part_arguments(arguments, processes)]
    try:
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            process.kill()
    if any(codes):
        raise SystemExit(f"parts ended with {codes}")

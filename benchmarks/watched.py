"""A script's work in a process of its own, watched: what hangs, crashes or loses the device costs itself alone.

    parent   `run` starts the script again with `--watched FILE`, ends it where FILE wasn't touched for `PATIENCE`, and
             starts it once more with `--without NAME=WHY` for what it was at when it ended badly
    child    `Beat` writes into FILE what it is at; `lost` says why nothing more can be done in this process

A CUDA error stays with its process: every later call fails too. Used by `attention`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PATIENCE: Final = 75.0
"""Seconds for one step: the longest is the first call of a kernel that compiles for 20 s on a busy machine."""
LOST: Final = 3
FAULTY: Final = 1
"""Exit status of a script whose arguments are wrong: nothing to start again."""
MOST: Final = 6
"""Times that one run is started."""


@dataclass(slots=True)
class Beat:
    """path: of the parent's file; None for a run that nobody watches."""

    path: Path | None
    name: str = field(default="", init=False)

    def at(self, name: str) -> None:
        self.name = name
        if self.path is not None:
            self.path.write_text(name, encoding="utf-8")

    def lost(self, why: str) -> None:
        """Ends the process, so that the parent goes on in another one. Does nothing where nobody watches."""
        if self.path is not None:
            self.path.write_text(f"{self.name}\n{why}", encoding="utf-8")
            sys.stdout.flush()
            raise SystemExit(LOST)


def run(script: Path, arguments: Sequence[str], patience: float = PATIENCE) -> int:
    """The exit status of the run that got to its end, or of the last."""
    without: list[str] = []
    code = 0
    for _ in range(MOST):
        with tempfile.TemporaryDirectory() as folder:
            beat = Path(folder) / "at"
            beat.write_text("")
            child = subprocess.Popen([sys.executable, str(script), *arguments, *without, "--watched", str(beat)])
            hung = _waited(child, beat, patience)
            code = child.returncode
            name, _, why = beat.read_text(encoding="utf-8").partition("\n")
        if code in (0, FAULTY):
            return code
        if not name:
            print(f"ended with status {code} before it began with anything", file=sys.stderr, flush=True)
            return code
        told = why or (f"no sign of life for {patience:.0f} s" if hung else f"ended its process with status {code}")
        print(f"{name}: {told}; on without it", file=sys.stderr, flush=True)
        without += ["--without", f"{name}={told}"]
    return code


def _waited(child: subprocess.Popen[bytes], beat: Path, patience: float) -> bool:
    """To the end of `child`; whether it had to be ended."""
    try:
        while child.poll() is None:
            if time.time() - beat.stat().st_mtime > patience:
                child.kill()
                child.wait()
                return True
            time.sleep(0.1)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    return False

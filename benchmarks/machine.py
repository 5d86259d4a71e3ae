"""What a result says of the machine and the checkout it was measured on.

Asks the kernel, git and nvidia-smi; a question that nobody here can answer is None. Fed by `measure` with what only the
engine knows; touches no device.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from benchmarks.result import Machine, Runtime
from h3runtime import __version__

ROOT = Path(__file__).resolve().parents[1]
CPUINFO = Path("/proc/cpuinfo")


def this_machine(device: str, device_bytes: int | None, threads: int, torch: str, cuda: str | None) -> Machine:
    """device: as it names itself, or `cpu`. threads: that PyTorch uses."""
    return Machine(
        device=device,
        device_count=1,
        device_bytes=device_bytes,
        driver=None if device == "cpu" else _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        cuda=cuda,
        cpu=processor(),
        cores=_cores(),
        threads=threads,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch,
    )


def this_runtime() -> Runtime:
    commit = _said("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changes = None if commit is None else _said("git", "-C", str(ROOT), "status", "--porcelain", "--", "h3runtime")
    return Runtime(version=__version__, commit=commit, changed=None if commit is None else changes is not None)


def processor(cpuinfo: Path = CPUINFO) -> str:
    """The processor's own name, where the kernel tells it; its architecture otherwise."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.machine() or "unknown"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _said(*command: str) -> str | None:
    """The first line that a command prints; None if it prints none, fails, or isn't there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().partition("\n")[0] or None

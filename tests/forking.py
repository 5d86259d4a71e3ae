"""Processes forked from an interpreter that has imported what they need: PyTorch alone takes two seconds of a core.

One fork server for each process that runs tests: whoever asks it first decides what it imports, so the list is here and
whole. Fed by tests of commands and of whole servers; those about a fresh start begin an interpreter themselves.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PRELOADED = [
    # It is imported with pytest's own `__main__`.
    "pytest",
    # The engine's modules bring PyTorch.
    "h3runtime.engine.decode",
    "h3runtime.api.serve",
    "h3runtime.cli.decode",
    "h3runtime.cli.serve",
    "h3runtime.jobs.child",
    "tests.fake_engine",
    "tests.jobs.dying_engine",
    "tests.api.served",
    "tests.cli.commands",
    "tests.e2e.commands",
    "tests.faults.service",
    "tests.faults.stub_engine",
]


def forking() -> ForkServerContext:
    """What `multiprocessing` calls a context."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found


def fork(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process that has begun. It shares neither files nor memory with this one."""
    process = forking().Process(target=target, args=arguments)
    process.start()
    return process


def write_to(out: Path, err: Path) -> None:
    """In the new process: what it prints, and what its own processes print, is appended to these files."""
    for number, stream in enumerate((out, err), start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)

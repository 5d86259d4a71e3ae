"""Commands as processes of their own that don't import everything anew: forked from one that has.

What a command is given is what a person gives it: arguments, a current folder, an environment. Fed by the tests of
commands; those about signals, memory and the first second start an interpreter themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from h3runtime.__main__ import main

TIMEOUT = 120.0
PRELOADED = ["pytest", "h3runtime.cli.decode", "h3runtime.cli.serve", "h3runtime.engine.decode", "tests.e2e.commands"]
"""What takes long: the first is imported with pytest's own `__main__`, the engine's modules bring PyTorch."""


def run(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command's end. Settings of whoever runs the tests are no part of its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(PRELOADED)
    with TemporaryDirectory() as told:
        streams = (Path(told, "out"), Path(told, "err"))
        process = forking.Process(target=_command, args=(arguments, folder, clean | environment, streams))
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode is not None, f"{arguments} is still running"
        out, err = (stream.read_text() for stream in streams)
    return subprocess.CompletedProcess(arguments, process.exitcode, out, err)


def _command(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str], streams: tuple[Path, Path]
) -> None:
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["h3runtime", *arguments]
    sys.exit(main(arguments))

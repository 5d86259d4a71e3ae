"""Commands as processes of their own that don't import everything anew: forked from one that has.

What a command is given is what a person gives it: arguments, a current folder, an environment. Fed by the tests of
commands; those about signals, memory and the first second start an interpreter themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from h3runtime.__main__ import main
from tests.forking import fork, write_to

TIMEOUT = 240.0


def run(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command's end. Settings of whoever runs the tests are no part of its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    with TemporaryDirectory() as told:
        streams = (Path(told, "out"), Path(told, "err"))
        process = fork(_command, arguments, folder, clean | environment, streams)
        process.join(TIMEOUT)
        assert process.exitcode is not None, f"{arguments} is still running"
        out, err = (stream.read_text() for stream in streams)
    return subprocess.CompletedProcess(arguments, process.exitcode, out, err)


def _command(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str], streams: tuple[Path, Path]
) -> None:
    write_to(*streams)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["h3runtime", *arguments]
    sys.exit(main(arguments))

"""Commands as processes, with an engine that takes no model: quick enough to ask about every way out.

The stand-in is put in place of the real engine by the program below; all else is the command itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from h3runtime.core import SAMPLE_RATE, GenerateSpec
from h3runtime.media.lossless import LosslessWriter
from h3runtime.media.sound import samples_for
from tests.forking import fork, write_to

ROOT = Path(__file__).parents[2]
PROGRAM = """
import pathlib, signal, sys, types
# What whoever runs the tests has ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import h3runtime
from tests.fake_engine import FakeEngine

class Engine(FakeEngine):
    written_to = None
    def __init__(self, settings, threads=None, *, on_ffmpeg_line=None, **options):
        super().__init__(journal=self.written_to)
        self.line = on_ffmpeg_line if options["ffmpeg_loglevel"] == "info" else print_nothing
    def generate(self, *arguments):
        self.line("a line of ffmpeg's")
        return super().generate(*arguments)
    def _publish(self, spec, *arguments):
        from tests.cli.commands import keep_tail
        keep_tail(spec)
        return super()._publish(spec, *arguments)

def print_nothing(line):
    pass

sys.modules["h3runtime.engine.resident"] = types.SimpleNamespace(ResidentEngine=Engine)
package = types.ModuleType("h3runtime.engine")
package.__path__ = [str(pathlib.Path(h3runtime.__file__).parent / "engine")]
sys.modules["h3runtime.engine"] = package
from h3runtime.__main__ import main
%s
sys.exit(main())
"""
TIMEOUT = 240.0
SMALL = ("--width", "64", "--height", "64", "--frames", "5")


def keep_tail(spec: GenerateSpec) -> None:
    """Grey pictures and a quiet tone, where the real engine keeps the end of its clip."""
    if spec.tail is None:
        return
    frames = min(spec.tail.frames, spec.frames)
    tone = 0.1 * np.sin(2 * np.pi * 440 / SAMPLE_RATE * np.arange(samples_for(frames)))
    writer = LosslessWriter(spec.tail.path, spec.width, spec.height, np.stack([tone, tone]).astype(np.float32))
    writer.put(np.full((frames, spec.height, spec.width, 3), 128, np.uint8))
    writer.finish()


def start(*arguments: str, folder: Path, before: str = "", **options: object) -> subprocess.Popen[str]:
    """A command with `folder` as the current one. stdout and stderr are pipes unless told otherwise. before: code that
    runs right before the command."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    environment = clean | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM % before, *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **streams)


def run(*arguments: str, folder: Path, **options: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. Without options, which need an interpreter of its own, it is forked from one that has
    imported everything."""
    return _run_fresh(*arguments, folder=folder, **options) if options else _run_forked(*arguments, folder=folder)


def _run_forked(*arguments: str, folder: Path) -> tuple[int, str, str]:
    with TemporaryDirectory() as told:
        streams = (Path(told, "out"), Path(told, "err"))
        process = fork(_command, arguments, folder, streams)
        process.join(TIMEOUT)
        assert process.exitcode is not None, f"{arguments} is still running"
        out, err = (stream.read_text() for stream in streams)
    return process.exitcode, out, err


def _command(arguments: tuple[str, ...], folder: Path, streams: tuple[Path, Path]) -> None:
    """In the new process."""
    write_to(*streams)
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("H3_")]:
        del os.environ[name]
    os.environ["TMPDIR"] = str(folder)
    sys.argv[:] = ["-c", *arguments]
    exec(PROGRAM % "", {"__name__": "__main__"})


def _run_fresh(*arguments: str, folder: Path, **options: object) -> tuple[int, str, str]:
    with start(*arguments, folder=folder, **options) as process:
        out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out or "", err or ""

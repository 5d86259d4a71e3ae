"""Which ffmpeg there is and what it can do. Starts it for two questions only; encoding is `mux`.

The engine and the command line call `find_ffmpeg` once and pass the answer on; `/ready` shows it. ffmpeg-python is used
only to write argument lists (in `mux`): starting and ending programs is `process`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg

from h3runtime.errors import BackendUnavailable

H264_ENCODERS = ("libx264", "libopenh264")
"""Software H.264 encoders, best first. Hardware ones are listed by builds that can't run them, so none is chosen."""
ANSWER_SECONDS = 20.0
"""How long a program may take to say what it is; a cold disk is slow, a hung network mount never answers."""
ENCODER_LINE = re.compile(r"^ [VAS][F.][S.][X.][B.][D.] (\w\S*)", re.MULTILINE)
"""One line of `ffmpeg -encoders`: six flags, then the name."""


@dataclass(frozen=True, slots=True)
class FFmpeg:
    """A program that ran. `encoders` are the names it lists; `why` says how it was chosen."""

    path: Path
    version: str
    encoders: frozenset[str]
    why: str

    @property
    def h264(self) -> str | None:
        """The H.264 encoder that clips are made with, or None."""
        return next((name for name in H264_ENCODERS if name in self.encoders), None)


def find_ffmpeg(search: str | None = None) -> FFmpeg:
    """The ffmpeg on the search path (None: the process's PATH), else imageio-ffmpeg's own binary.

    A program that doesn't run or has no H.264 or AAC encoder is passed over, and `why` says so. `BackendUnavailable`
    with every reason if none is left.
    """
    refused: list[str] = []
    for path, origin in _candidates(search):
        try:
            tool = ask_ffmpeg(path, origin if not refused else f"{origin}, since {'; '.join(refused)}")
        except BackendUnavailable as error:
            refused.append(f"{origin}: {error.message}")
            continue
        lacking = _lacking(tool)
        if lacking is None:
            return tool
        refused.append(f"{origin}: {lacking}")
    reasons = "; ".join(refused) or "there is none on PATH and imageio-ffmpeg brings none for this system"
    raise BackendUnavailable(f"No usable ffmpeg: {reasons}")


def ask_ffmpeg(path: Path, why: str, seconds: float = ANSWER_SECONDS) -> FFmpeg:
    """Version and encoders of one program; `BackendUnavailable` if it doesn't answer like ffmpeg."""
    version = re.match(r"ffmpeg version (\S+)", _answer(path, "-version", seconds))
    if version is None:
        raise BackendUnavailable("it doesn't answer like ffmpeg")
    return FFmpeg(path, version[1], frozenset(ENCODER_LINE.findall(_answer(path, "-encoders", seconds))), why)


def _candidates(search: str | None) -> Iterator[tuple[Path, str]]:
    on_path = shutil.which("ffmpeg", path=search)
    if on_path is not None:
        yield Path(on_path).absolute(), "ffmpeg on PATH"
    with suppress(RuntimeError):
        yield Path(imageio_ffmpeg.get_ffmpeg_exe()).absolute(), "imageio-ffmpeg's binary"


def _lacking(tool: FFmpeg) -> str | None:
    if tool.h264 is None:
        return f"version {tool.version} has no H.264 encoder ({' or '.join(H264_ENCODERS)})"
    return None if "aac" in tool.encoders else f"version {tool.version} has no AAC encoder"


def _answer(path: Path, question: str, seconds: float) -> str:
    """What the program prints on stdout. It gets a group of its own, which is gone afterwards whatever it did."""
    command = [str(path), "-nostdin", question]
    try:
        asked = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except OSError as error:
        raise BackendUnavailable(f"it can't be started ({error.strerror})") from error
    with asked:
        try:
            printed, _ = asked.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise BackendUnavailable(f"it didn't answer within {seconds:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(asked.pid, signal.SIGKILL)
    if asked.returncode != 0:
        raise BackendUnavailable(f"it ended with status {asked.returncode}")
    return printed.decode(errors="replace")

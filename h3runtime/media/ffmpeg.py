"""Which ffmpeg there is and what it can do. Starts it for these questions only; encoding is `mux`.

The service, the engine and the command line call `find_ffmpeg` once and pass the answer on; `formats` says what of it a
request may ask for. ffmpeg-python is used only to write argument lists (in `encode_command`): starting and ending
programs is `process`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import imageio_ffmpeg

from h3runtime.core import AudioCodec, PixelFormat, VideoCodec
from h3runtime.errors import BackendUnavailable

VIDEO_ENCODERS: Mapping[VideoCodec, tuple[str, ...]] = {
    "h264": ("libx264", "libopenh264"),
    "hevc": ("libx265",),
    "vp9": ("libvpx-vp9",),
    "av1": ("libsvtav1", "libaom-av1"),
}
"""Software encoders, best first. Hardware ones are listed by builds that can't run them, so none is chosen."""
AUDIO_ENCODERS: Mapping[AudioCodec, str] = {
    "aac": "aac",
    "opus": "libopus",
    "flac": "flac",
    "pcm_s16le": "pcm_s16le",
}
"""ffmpeg's own `opus` is marked experimental, so it isn't used."""
ANSWER_SECONDS = 20.0
"""How long a program may take to say what it is; a cold disk is slow, a hung network mount never answers."""
VERSION = re.compile(r"ffmpeg version (\S+)")
ENCODER_LINE = re.compile(r"^ [VAS][F.][S.][X.][B.][D.] (\w\S*)", re.MULTILINE)
"""One line of `ffmpeg -encoders`: six flags, then the name."""
PIXEL_FORMATS = re.compile(r"Supported pixel formats:(.*)")
"""One line of `ffmpeg -h encoder=NAME`."""
EVERY_ENCODER_TAKES: PixelFormat = "yuv420p"
"""Also what is assumed of an encoder that doesn't say."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """printed: on stdout. said: on stderr."""

    printed: str
    said: str


@dataclass(frozen=True, slots=True)
class FFmpeg:
    """A program that ran. `encoders` are the names it lists; `why` says how it was chosen. pixel_formats: what it said
    of its encoders so far; each is asked once, when other pixels than yuv420p are first wanted of it."""

    path: Path
    version: str
    encoders: frozenset[str]
    why: str
    pixel_formats: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def major(self) -> int | None:
        """5 of `5.1.9-0+deb12u1`, 7 of `n7.1`; None for builds that are named otherwise."""
        found = re.match(r"n?(\d+)\.", self.version)
        return int(found[1]) if found is not None else None

    def video_encoder(self, codec: VideoCodec, pixels: PixelFormat | None = None) -> str | None:
        """The best encoder of a codec that takes these pixels (None: any), or None."""
        found = (name for name in VIDEO_ENCODERS[codec] if name in self.encoders)
        return next((name for name in found if pixels is None or self._takes(name, pixels)), None)

    def audio_encoder(self, codec: AudioCodec) -> str | None:
        name = AUDIO_ENCODERS[codec]
        return name if name in self.encoders else None

    def _takes(self, encoder: str, pixels: PixelFormat) -> bool:
        if pixels == EVERY_ENCODER_TAKES:
            return True
        if encoder not in self.pixel_formats:
            self.pixel_formats[encoder] = _pixel_formats(self.path, encoder)
        return pixels in self.pixel_formats[encoder]


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
    """Version and encoders of one program; `BackendUnavailable` if it doesn't answer like ffmpeg.

    It says its version on stderr before whatever it was asked, unless it was built not to; to start it once more takes
    60 ms of a core, for the 200 libraries of a distribution's.
    """
    answer = _answer(path, ["-encoders"], seconds)
    version = VERSION.match(answer.said) or VERSION.match(_answer(path, ["-version"], seconds).printed)
    if version is None:
        raise BackendUnavailable("it doesn't answer like ffmpeg")
    return FFmpeg(path, version[1], frozenset(ENCODER_LINE.findall(answer.printed)), why)


def _pixel_formats(path: Path, encoder: str) -> frozenset[str]:
    answer = ""
    with suppress(BackendUnavailable):
        answer = _answer(path, ["-h", f"encoder={encoder}"], ANSWER_SECONDS).printed
    listed = PIXEL_FORMATS.search(answer)
    return frozenset(listed[1].split()) if listed is not None else frozenset({EVERY_ENCODER_TAKES})


def _candidates(search: str | None) -> Iterator[tuple[Path, str]]:
    on_path = shutil.which("ffmpeg", path=search)
    if on_path is not None:
        yield Path(on_path).absolute(), "ffmpeg on PATH"
    with suppress(RuntimeError):
        yield Path(imageio_ffmpeg.get_ffmpeg_exe()).absolute(), "imageio-ffmpeg's binary"


def _lacking(tool: FFmpeg) -> str | None:
    if tool.video_encoder("h264") is None:
        return f"version {tool.version} has no H.264 encoder ({' or '.join(VIDEO_ENCODERS['h264'])})"
    return None if tool.audio_encoder("aac") else f"version {tool.version} has no AAC encoder"


def _answer(path: Path, question: list[str], seconds: float) -> _Answer:
    """What the program prints. It gets a group of its own, which is gone afterwards whatever it did."""
    command = [str(path), "-nostdin", *question]
    try:
        asked = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except OSError as error:
        raise BackendUnavailable(f"it can't be started ({error.strerror})") from error
    with asked:
        try:
            printed, said = asked.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise BackendUnavailable(f"it didn't answer within {seconds:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(asked.pid, signal.SIGKILL)
    if asked.returncode != 0:
        raise BackendUnavailable(f"it ended with status {asked.returncode}")
    return _Answer(printed.decode(errors="replace"), said.decode(errors="replace"))

"""A list of clips as one: each continues the one before it, all are cut on one clock and encoded once.

    for each clip:  the last frames before its cut and their sound -> guide file -> engine -> part, kept without loss
    at the end:     parts, each from its overlap to its cut -> frames -> ClipWriter
                    their sounds -> `media.joining` -> loudness rule over the whole -> ClipWriter

The guide is what a viewer has seen last: frames before the cut, never a clip's surplus beyond it, from as many clips as
it takes. Memory holds one chunk of frames and the sound of the whole (256 kB a second); parts lie on disk. `cuts` says
which frames are whose. Fed by the command line with judged requests; knows the engine by its protocol only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import (
    CHUNK_FRAMES,
    Clip,
    ClipInput,
    EncodeSettings,
    Engine,
    GenerateSpec,
    MediaFile,
    OnProgress,
    Progress,
    ShouldStop,
    SoundInput,
    TailRequest,
)
from h3runtime.errors import InvalidRequest, JobCancelled, JobError, Offence
from h3runtime.media import sound
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from h3runtime.media.joining import Place, join, sample_at
from h3runtime.media.lossless import LosslessWriter
from h3runtime.media.mux import ClipShape, ClipWriter, Limits, WrittenClip
from h3runtime.packing.cuts import Share

ENCODING = 0.1
"""How long the last encode takes, in clips: a guess that moves the bar and nothing else."""


@dataclass(frozen=True, slots=True)
class Link:
    """One clip of a chain. spec: as judged; `frames` are those of its share, `output` is thrown away. guide: where the
    `share.overlap` frames before it are written, for the guide of the spec that reads them; None for a hard cut."""

    spec: GenerateSpec
    share: Share
    guide: Path | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """links: in order, sharing one canvas. scratch: on the file system of `output`."""

    links: tuple[Link, ...]
    output: Path
    scratch: Path
    encode: EncodeSettings = EncodeSettings()  # noqa: RUF009  # frozen
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The whole, and what the engine said of each clip."""

    written: WrittenClip
    clips: tuple[Clip, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A made clip without loss, its surplus included, and what of the whole it gives."""

    path: Path
    share: Share
    width: int
    height: int

    @property
    def file(self) -> MediaFile:
        return MediaFile(self.path, self.path.name)


class ChainMaker:
    """Makes one chain. on_clip: told the index of each clip that begins. The rest is what `ClipWriter` takes.

    Errors are those of the engine and of the encoder; one that a clip met begins with its index, `[3]: `.
    """

    def __init__(
        self,
        engine: Engine,
        tool: FFmpeg,
        on_progress: OnProgress,
        should_stop: ShouldStop,
        *,
        on_clip: Callable[[int], None] = lambda _: None,
        stall_seconds: float = 60.0,
        loglevel: str = "error",
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._engine, self._tool = engine, tool
        self._on_progress, self._should_stop, self._on_clip = on_progress, should_stop, on_clip
        self._stall_seconds, self._loglevel, self._on_line = stall_seconds, loglevel, on_line
        self._began = time.monotonic()

    def make(self, chain: Chain) -> ChainResult:
        parts: list[Part] = []
        clips: list[Clip] = []
        for index, link in enumerate(chain.links):
            self._on_clip(index)
            with _named(index):
                if link.guide is not None:
                    write_guide(parts, link.share, link.guide)
                part = Part(chain.scratch / f"part-{index:04}.mkv", link.share, link.spec.width, link.spec.height)
                clips.append(self._generate(link.spec, part, index, len(chain.links)))
                parts.append(part)
        return ChainResult(self._encode(chain, parts), tuple(clips))

    def _generate(self, spec: GenerateSpec, part: Part, index: int, count: int) -> Clip:
        def on_progress(progress: Progress) -> None:
            self._report(
                progress.stage, progress.step, progress.steps, (index + progress.fraction) / (count + ENCODING)
            )

        tail = TailRequest(part.path, spec.frames)
        clip = self._engine.generate(replace(spec, tail=tail), on_progress, self._should_stop)
        clip.output.unlink()
        return clip

    def _encode(self, chain: Chain, parts: list[Part]) -> WrittenClip:
        total, first = parts[-1].share.stop, parts[0]
        waveform = sound.prepare(joined_sound(parts), total, chain.encode.loudness)
        with ClipWriter(
            self._tool,
            chain.output,
            chain.scratch,
            ClipShape(first.width, first.height, total),
            waveform,
            encode=chain.encode,
            overwrite=chain.overwrite,
            limits=Limits(stall=self._stall_seconds),
            should_stop=self._should_stop,
            loglevel=self._loglevel,
            on_line=self._on_line,
        ) as writer:
            done, clips = 0, len(parts)
            for chunk in frames_between(parts, 0, total):
                writer.put(chunk)
                done += len(chunk)
                self._report("mux", done, total, (clips + ENCODING * done / total) / (clips + ENCODING))
            return writer.finish()

    def _report(self, stage: str, step: int, steps: int, fraction: float) -> None:
        elapsed = time.monotonic() - self._began
        eta = elapsed * (1 - fraction) / fraction if fraction > 0 else None
        self._on_progress(Progress(stage, step, steps, min(fraction, 1.0), eta))


def write_guide(parts: Sequence[Part], share: Share, path: Path) -> None:
    """The last `share.overlap` frames before `share.start` and their sound, as a clip of their own."""
    start = share.start - share.overlap
    waveform = joined_sound(parts, start)
    writer = LosslessWriter(path, parts[0].width, parts[0].height, waveform)
    try:
        for chunk in frames_between(parts, start, share.start):
            writer.put(chunk)
        writer.finish()
    finally:
        writer.abandon()


def frames_between(parts: Sequence[Part], start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    """Frames [start, stop) of what the parts make together: uint8 [n, H, W, 3], a few at a time."""
    for part in parts:
        first, last = max(start, part.share.start), min(stop, part.share.stop)
        if first < last:
            own = ClipInput(part.file, part.share.overlap + first - part.share.start, last - first)
            yield from _chunks(clip_frames(own, part.width, part.height, "stretch"))


def joined_sound(parts: Sequence[Part], start: int = 0) -> NDArray[np.float32]:
    """float32 [2, n] from frame `start` to the last part's cut, every cut on the way cross-faded."""
    # The part before the first may still be fading out in it.
    first = max(0, sum(part.share.stop <= start for part in parts) - 1)
    needed = parts[first:]
    places = [Place(part.share.start, part.share.stop, part.share.overlap) for part in needed]
    whole = join(places, (read_sound_in(SoundInput(part.file)) for part in needed))
    return whole[:, sample_at(start) - sample_at(places[0].start) :]


def _chunks(frames: Iterator[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    held: list[NDArray[np.uint8]] = []
    for frame in frames:
        held.append(frame)
        if len(held) == CHUNK_FRAMES:
            yield np.stack(held)
            held = []
    if held:
        yield np.stack(held)


@contextmanager
def _named(index: int) -> Iterator[None]:
    """Errors of one clip, under its index."""
    try:
        yield
    except JobCancelled:
        raise
    except JobError as error:
        raise type(error)(f"[{index}]: {error.message}", error.offences, error.stage, error.step) from error
    except InvalidRequest as error:
        offences = [Offence(f"[{index}].{o.field}", o.message, o.legal) for o in error.offences]
        raise type(error)(f"[{index}]: {error.message}", offences) from error

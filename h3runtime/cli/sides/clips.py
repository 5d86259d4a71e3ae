"""How far two sides' decoded clips are apart: frame by frame, and the sound by spans of a tenth of a second.

Reads both sides' lossless files, piece by piece. Frames and totals are those of `compare` on two files
(`comparison.media`); what is added is the sound over time. The sound is as decoded, before the loudness rule.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from h3runtime.cli.comparison.found import Found, OnPart
from h3runtime.cli.comparison.inputs import media_of
from h3runtime.cli.comparison.media import compare_media
from h3runtime.core import SAMPLE_RATE
from h3runtime.media.agreement import Agreement
from h3runtime.media.clip_stream import each_block
from h3runtime.media.log_mel import LogMelDistance

SPAN: Final = SAMPLE_RATE // 10
"""Samples: three windows of the spectrum and a bit."""


@dataclass(frozen=True, slots=True)
class SoundSpan:
    """Samples [start, stop) of both: their log-mel distance in dB, and sums."""

    start: int
    stop: int
    log_mel_db: float
    sums: Agreement


@dataclass(frozen=True, slots=True)
class ClipsFound:
    """pictures: frames, and totals of both streams. sound: spans in order."""

    pictures: Found
    sound: tuple[SoundSpan, ...]


def compare_clips(a: Path, b: Path, on_part: OnPart) -> ClipsFound:
    first, second = media_of("clips", a, b)
    return ClipsFound(compare_media("clips", first, second, on_part), tuple(sound_spans(a, b)))


def sound_spans(a: Path, b: Path) -> Iterator[SoundSpan]:
    start = 0
    with closing(spans_of(a)) as first, closing(spans_of(b)) as second:
        for x, y in zip(first, second, strict=True):
            distance = LogMelDistance(SAMPLE_RATE)
            distance.feed(x, y)
            yield SoundSpan(start, start + x.shape[1], distance.finish(), Agreement.of(x, y))
            start += x.shape[1]


def spans_of(path: Path) -> Generator[NDArray[np.float32], None, None]:
    """float32 [C, `SPAN`], the last one shorter."""
    held: NDArray[np.float32] | None = None
    for block in each_block(path, path.name):
        held = block if held is None else np.concatenate([held, block], axis=1)
        while held.shape[1] >= SPAN:
            yield held[:, :SPAN]
            held = held[:, SPAN:]
    if held is not None and held.shape[1]:
        yield held

"""Sound on its way in: any rate and any channels to 32 kHz stereo, from any moment of the file's clock.

The engine reads guide and reference sounds and soundtracks with it, for the audio encoder. `sound_pieces` decodes and
aligns. A sound's rate travels with its samples, so its pitch can't change.

    rate       soxr, its VHQ recipe, as a stream; 32 kHz passes untouched, bit for bit
    channels   mono on both sides; of more than two the first two, as ComfyUI takes them (left and right of 5.1)
    the cut    after the conversion, in samples of 32 kHz: [round(32000 start), round(32000 (start + seconds)))
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import soxr
from numpy.typing import NDArray

from h3runtime.core import SAMPLE_RATE, SoundInput
from h3runtime.media.intake.containers import bad_medium
from h3runtime.media.intake.sound_pieces import SoundPiece, sound_pieces

LONGEST = 3600 * SAMPLE_RATE
"""Samples that are kept in memory at most."""


def read_sound_in(sound: SoundInput) -> NDArray[np.float32]:
    """float32 [2, n] at 32 kHz, n at most what `sound.seconds` says; a sound that ends earlier is shorter.

    `BadMedia` naming the field for a file without sound, one that can't be decoded, or that ends before `sound.start`.
    """
    begin = round(sound.start * SAMPLE_RATE)
    end = None if sound.seconds is None else round((sound.start + sound.seconds) * SAMPLE_RATE)
    kept: list[NDArray[np.float32]] = []
    passed = 0
    for block in _converted(sound_pieces(sound.file.path, sound.file.field)):
        kept.append(block[max(0, begin - passed) : None if end is None else max(0, end - passed)])
        passed += len(block)
        if end is not None and passed >= end:
            break
        if passed - begin > LONGEST:
            raise bad_medium(sound.file.field, f"its sound is longer than {LONGEST // SAMPLE_RATE} s")
    if not sum(map(len, kept)):
        raise bad_medium(sound.file.field, f"it has no sound {sound.start:g} s from its beginning")
    return np.ascontiguousarray(np.concatenate(kept).T)


def _converted(pieces: Generator[SoundPiece, None, None]) -> Generator[NDArray[np.float32], None, None]:
    """Blocks of float32 [n, 2] at 32 kHz."""
    stream: soxr.ResampleStream | None = None
    for piece in pieces:
        pair = np.ascontiguousarray(_pair(piece.samples).T)
        if piece.rate == SAMPLE_RATE:
            yield pair
            continue
        stream = stream or soxr.ResampleStream(piece.rate, SAMPLE_RATE, 2, dtype="float32", quality="VHQ")
        yield stream.resample_chunk(pair)
    if stream is not None:
        yield stream.resample_chunk(np.zeros((0, 2), np.float32), last=True)


def _pair(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """[C, n] -> [2, n]."""
    return np.repeat(samples, 2, axis=0) if len(samples) == 1 else samples[:2]

"""What Qwen3-VL is shown for each task: text pieces and vision pieces, in order (conditioning contract §1.3, §1.10).

There is no chat template. Every text piece is tokenised on its own, since merges across a boundary would give other
ids; so a label, a timestamp and the prompt stay separate strings here. Numbers and strings only: no ids, no resizing.
Fed by the engine (prompt, fitted pictures); read by `presentation` and `prompt_cache`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE_EVERY = 12
"""Frames between two that Qwen sees: 2 a second of a 24 fps clip (conditioning contract §1.10)."""
SAMPLES_PER_SECOND = 2


@dataclass(frozen=True, slots=True, eq=False)
class Vision:
    """One vision block. pixels: uint8 RGB [1, H, W, 3] for a still picture, [2, H, W, 3] for a pair of frames."""

    pixels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        shape = self.pixels.shape
        assert self.pixels.dtype == np.uint8 and len(shape) == 4 and shape[0] in (1, 2) and shape[3] == 3, shape


Piece = str | Vision


@dataclass(frozen=True, slots=True, eq=False)
class ImageReference:
    """pixels: uint8 RGB [1, H, W, 3], already at its reference size (conditioning contract §3.3)."""

    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class AudioReference:
    """A lone sound. It shows as a label alone: waveforms never enter Qwen."""


@dataclass(frozen=True, slots=True, eq=False)
class VideoReference:
    """frames: uint8 RGB [F, H, W, 3] at 24 fps on its own canvas. `soundtrack`: its sound is used and numbered."""

    frames: NDArray[np.uint8]
    soundtrack: bool = False


MediaReference = ImageReference | AudioReference | VideoReference


def keyframe_pieces(prompt: str, images: Sequence[NDArray[np.uint8]] = ()) -> tuple[Piece, ...]:
    """T2VA (no image), I2VA and L2VA (one), FL2VA (first, last). Images are uint8 [1, H, W, 3], fitted to the canvas.

    Labels count list positions, not roles: a lone last frame is `<Picture 1>`.
    """
    pieces: list[Piece] = []
    for number, pixels in enumerate(images, 1):
        pieces += [f"<Picture {number}>: ", Vision(pixels)]
    return _without_empty([*pieces, prompt])


def reference_pieces(prompt: str, references: Iterable[MediaReference]) -> tuple[Piece, ...]:
    """Ref2VA: each reference in packed order, then the prompt. Numbers count from 1 within each kind."""
    counts: Counter[str] = Counter()
    pieces: list[Piece] = []
    for reference in references:
        match reference:
            case ImageReference(pixels):
                pieces += [_label("Picture", counts), Vision(pixels)]
            case AudioReference():
                pieces.append(_label("Audio", counts))
            case VideoReference(frames, soundtrack):
                pieces += [_label("Audio", counts)] if soundtrack else []
                pieces += [_label("Video", counts), *_frame_pairs(frames)]
    return _without_empty([*pieces, prompt])


def _label(kind: str, counts: Counter[str]) -> str:
    counts[kind] += 1
    return f"<{kind} {counts[kind]}>: "


def _frame_pairs(frames: NDArray[np.uint8]) -> Iterator[Piece]:
    """Every 12th frame, two to a block, an odd last one doubled; the block's time is the mean of its two."""
    indices = list(range(0, len(frames), SAMPLE_EVERY))
    times = [i / SAMPLES_PER_SECOND for i in range(len(indices))]
    if len(indices) % 2:
        indices.append(indices[-1])
        times.append(times[-1])
    for i in range(0, len(indices), 2):
        # `.1f` rounds exact binary halves to even, as the release does: 0.25 prints 0.2.
        yield f"<{(times[i] + times[i + 1]) / 2:.1f} seconds>"
        yield Vision(frames[indices[i : i + 2]])


def _without_empty(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    return tuple(piece for piece in pieces if piece != "")

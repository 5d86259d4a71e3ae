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

from h3runtime.core import FPS
from h3runtime.media.vision_size import SAMPLE_EVERY

SAMPLES_PER_SECOND = FPS // SAMPLE_EVERY


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
    """frames: uint8 RGB [F, H, W, 3] at 24 fps on its own canvas. `soundtrack`: its sound is used and numbered.

    sampled: `frames` are every 12th of them alone, [ceil(F / 12), H, W, 3]; Qwen sees no others.
    """

    frames: NDArray[np.uint8]
    soundtrack: bool = False
    sampled: bool = False

    @property
    def samples(self) -> NDArray[np.uint8]:
        """Every 12th frame from the first on."""
        return self.frames if self.sampled else self.frames[::SAMPLE_EVERY]


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
            case VideoReference():
                pieces += [_label("Audio", counts)] if reference.soundtrack else []
                pieces += [_label("Video", counts), *_frame_pairs(reference.samples)]
    return _without_empty([*pieces, prompt])


def _label(kind: str, counts: Counter[str]) -> str:
    counts[kind] += 1
    return f"<{kind} {counts[kind]}>: "


def _frame_pairs(samples: NDArray[np.uint8]) -> Iterator[Piece]:
    """Two to a block, an odd last one doubled; the block's time is the mean of its two."""
    for first in range(0, len(samples), 2):
        pair = samples[first : first + 2]
        second = first + len(pair) - 1
        # `.1f` rounds exact binary halves to even, as the release does: 0.25 prints 0.2.
        yield f"<{(first + second) / SAMPLES_PER_SECOND / 2:.1f} seconds>"
        yield Vision(pair if len(pair) == 2 else pair.repeat(2, axis=0))


def _without_empty(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    return tuple(piece for piece in pieces if piece != "")

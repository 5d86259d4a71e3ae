"""Presentations of one layout as one batch, for the encoder that learns.

    captions of one length, as ids -> captioned (per step, with labels and pictures)
    presentations of one layout -> text_batch (any task, one by one: slower)

Rows are those that `conditioning.presentation` lays out, with ids as rows of the compact table. Computes no feature.
Fed by the training; read by `text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.conditioning.pieces import Piece, Vision
from h3runtime.conditioning.presentation import Presentation, present
from h3runtime.core import Modality
from h3runtime.media.vision_size import Grid
from h3runtime.nano.vocabulary import Vocabulary

Blocks = tuple[tuple[int, Grid], ...]
"""First feature row and patch grid of every vision block, in row order."""
FrameSize = tuple[int, int, int]
"""Frames (1 or 2), height and width of a vision block's pixels."""
BatchPiece = str | torch.Tensor
"""A label, or the pixels of a vision block in all presentations: uint8 [B, 1|2, H, W, 3]."""


@dataclass(frozen=True, slots=True, eq=False)
class TextBatch:
    """ids: int64 [B, L], rows of the compact table. tags: int64 [L], 1 on text and 0 on whole vision blocks.

    pixels: per block uint8 [B, 1|2, H, W, 3], one frame for a still picture.
    """

    ids: torch.Tensor
    tags: NDArray[np.int64]
    blocks: Blocks = ()
    pixels: tuple[torch.Tensor, ...] = ()

    @property
    def rows(self) -> int:
        """L."""
        return self.ids.shape[1]

    def to(self, device: torch.device | str) -> TextBatch:
        """The same batch there."""
        return replace(self, ids=self.ids.to(device), pixels=tuple(p.to(device) for p in self.pixels))


def captioned(before: Sequence[BatchPiece], captions: torch.Tensor, vocabulary: Vocabulary) -> TextBatch:
    """B presentations: the pieces `before`, the same labels in all, then captions int64 [B, Lc], compact ids.

    `before` as `keyframe_pieces` or `reference_pieces` lay them out, with the pixels of all B presentations in place
    of one's: `["<Picture 1>: ", first, "<Picture 2>: ", last]`. Everything on the captions' device.
    """
    pixels = tuple(piece for piece in before if not isinstance(piece, str))
    sizes = tuple(p if isinstance(p, str) else (p.shape[1], p.shape[2], p.shape[3]) for p in before)
    ids, tags, blocks = _opening(sizes, vocabulary, captions.device)
    rows = torch.cat([ids.expand(len(captions), -1), captions], dim=1)
    told = np.full(captions.shape[1], Modality.TEXT, dtype=np.int64)
    return TextBatch(rows, np.concatenate([tags, told]), blocks, pixels)


@lru_cache(maxsize=256)
def _opening(
    pieces: tuple[str | FrameSize, ...], vocabulary: Vocabulary, device: torch.device
) -> tuple[torch.Tensor, NDArray[np.int64], Blocks]:
    """ids [Lb], tags [Lb] and blocks of what comes before the captions; kept, so that a step copies nothing."""
    shown: list[Piece] = [p if isinstance(p, str) else Vision(np.zeros((*p, 3), np.uint8)) for p in pieces]
    if not shown:  # `present` would give the row of an empty presentation
        return torch.zeros(0, dtype=torch.int64, device=device), np.zeros(0, np.int64), ()
    presentation = present(shown, vocabulary.tokenizer)
    ids = torch.from_numpy(vocabulary.compact(presentation.ids)).to(device)
    return ids, presentation.tags, _blocks(presentation)


def text_batch(presentations: Sequence[Presentation], vocabulary: Vocabulary) -> TextBatch:
    """Presentations of one layout, with real ids, on the CPU."""
    first = presentations[0]
    assert all(_blocks(p) == _blocks(first) and p.rows == first.rows for p in presentations), "layouts differ"
    ids = vocabulary.compact(np.stack([p.ids for p in presentations]))
    shown = zip(*([b.pixels for b in p.blocks] for p in presentations), strict=True)
    pixels = tuple(torch.from_numpy(np.stack(block)) for block in shown)
    return TextBatch(torch.from_numpy(ids), first.tags, _blocks(first), pixels)


def _blocks(presentation: Presentation) -> Blocks:
    return tuple((block.start, block.grid) for block in presentation.blocks)

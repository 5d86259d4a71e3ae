"""Pieces -> presentation rows: ids, tags and where the vision blocks lie (conditioning contract §1.3, §1.5).

A vision block of n features is n + 2 rows: `<|vision_start|>`, n pads, `<|vision_end|>`; all of them carry the video
tag. Blocks come from vision pieces alone: marker text that a user typed has marker ids but stays text (tag 1, looked up
like any word). Computes no feature. Fed by `pieces` and `tokenizer`; read by `encoder` and, for row counts, the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h3runtime.conditioning.pieces import Piece, Vision
from h3runtime.conditioning.tokenizer import ENDOFTEXT, IMAGE_PAD, VISION_END, VISION_START, PromptTokenizer
from h3runtime.core import Modality
from h3runtime.media.vision_size import Grid, features_of, patch_grid


@dataclass(frozen=True, slots=True)
class Markers:
    """Ids around and inside a vision block. `pad` is never looked up. `empty` stands for a presentation of nothing."""

    start: int = VISION_START
    end: int = VISION_END
    pad: int = IMAGE_PAD
    empty: int = ENDOFTEXT


@dataclass(frozen=True, slots=True, eq=False)
class VisionBlock:
    """Feature rows [start, stop), without the two marker rows around them. grid: patches (gh, gw), after resizing."""

    start: int
    grid: Grid
    pixels: NDArray[np.uint8]

    @property
    def stop(self) -> int:
        return self.start + features_of(self.grid)

    @property
    def span(self) -> tuple[int, int]:
        """Rows [a, b) of the whole block, markers included: the rows of the video tag."""
        return self.start - 1, self.stop + 1


@dataclass(frozen=True, slots=True, eq=False)
class Presentation:
    """ids int64 [L]; tags int64 [L], 1 on text and 0 on whole vision blocks; blocks in row order."""

    ids: NDArray[np.int64]
    tags: NDArray[np.int64]
    blocks: tuple[VisionBlock, ...]

    @property
    def rows(self) -> int:
        return len(self.ids)


def present(pieces: Iterable[Piece], tokenizer: PromptTokenizer) -> Presentation:
    """Tokenise each text piece on its own and lay all pieces out in rows."""
    return assemble([tokenizer.encode(p) if isinstance(p, str) else p for p in pieces])


def assemble(pieces: Iterable[Sequence[int] | Vision], markers: Markers | None = None) -> Presentation:
    """Lay out pieces whose text is tokenised already. Nothing at all becomes one end-of-text row."""
    markers = markers or Markers()
    ids: list[int] = []
    blocks: list[VisionBlock] = []
    for piece in pieces:
        if isinstance(piece, Vision):
            block = VisionBlock(len(ids) + 1, patch_grid(*piece.pixels.shape[1:3]), piece.pixels)
            ids += [markers.start, *[markers.pad] * features_of(block.grid), markers.end]
            blocks.append(block)
        else:
            ids += piece
    rows = np.array(ids or [markers.empty], dtype=np.int64)
    return Presentation(rows, _tags(len(rows), blocks), tuple(blocks))


def _tags(rows: int, blocks: Iterable[VisionBlock]) -> NDArray[np.int64]:
    tags = np.full(rows, Modality.TEXT, dtype=np.int64)
    for block in blocks:
        tags[slice(*block.span)] = Modality.VIDEO
    tags.flags.writeable = False
    return tags

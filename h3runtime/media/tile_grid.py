"""Can one see where a decoded picture was cut into tiles? One number, 1 for no.

Does: compare the luma steps at tile lines with those beside them. Does not: know the tiling rule, or what is too much;
`checks` is told the first by the engine and holds the threshold, and is the only caller. numpy only.

Lines: line x lies between columns x - 1 and x. A tile shows at two kinds of line: where it starts, and where its
overlap with the one before ends. All of them are patch borders of the decoder, where any picture may step a little, so
they are compared with other patch borders nearby: the sky's with the sky's.

    steps [stretches, W - 1]   mean |luma(x) - luma(x - 1)| in stretches of 32 rows, averaged over frames, 8-bit levels
    ratio of one line          median over stretches of (step + 0.25) / (typical step + 0.25)
    score of one kind          geometric mean over its lines; the score is that of the worse kind

A seam runs through the whole picture and an edge of the scene seldom does: hence the median. One edge that does should
count little among several lines: hence the geometric mean. Rows are treated as columns of the transposed picture.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PATCH = 16
"""Pixels of one decoder patch; tile lines are multiples of it (conditioning contract §4.5)."""
STRETCH = 32
"""Rows over which steps across a line are averaged: two patches, 24 stretches on a 768 high picture."""
REACH = 96
"""How far the lines lie that a tile line is compared with, in pixels: six patches on either side."""
STEP_FLOOR = 0.25
"""Levels added to both sides of a ratio: a quarter level is rounding, and a flat picture has no grid."""


def luma_steps(luma: NDArray[np.float32]) -> NDArray[np.float64]:
    """Luma [H, W] in 8-bit levels -> [ceil(H / 32), W - 1]; entry x - 1 belongs to line x."""
    differences = np.abs(luma[:, 1:] - luma[:, :-1])
    begins = np.arange(0, len(luma), STRETCH)
    lengths = np.diff(np.append(begins, len(luma)))
    sums = np.add.reduceat(differences, begins, axis=0)
    steps: NDArray[np.float64] = sums.astype(np.float64) / lengths[:, None]
    return steps


def tile_grid_score(steps: NDArray[np.float64], starts: tuple[int, ...], overlaps: tuple[int, ...]) -> float:
    """How much the picture steps at tile lines, as a multiple of how it steps beside them.

    `steps` as of `luma_steps`, averaged over frames; `starts` of all tiles and the `overlaps` between them, in pixels.
    """
    begins = starts[1:]
    ends = tuple(start + overlap for start, overlap in zip(begins, overlaps, strict=True))
    grid = {*begins, *ends}
    scores = [
        float(np.exp(np.mean([np.log(_line_ratio(steps, line, grid)) for line in lines])))
        for lines in ([line for line in kind if 0 < line <= steps.shape[1]] for kind in (begins, ends))
        if lines
    ]
    return max(scores, default=1.0)


def _line_ratio(steps: NDArray[np.float64], line: int, grid: set[int]) -> float:
    """One line's ratio. Where no patch border in reach is free of tile lines, all other lines stand in."""
    others = [x for x in range(1, steps.shape[1] + 1) if x not in grid]
    near = [x for x in others if (x - line) % PATCH == 0 and abs(x - line) <= REACH]
    if not others:
        return 1.0
    typical = np.median(steps[:, [x - 1 for x in near or others]], axis=1)
    ratios = (steps[:, line - 1] + STEP_FLOOR) / (typical + STEP_FLOOR)
    return float(np.median(ratios))

"""How alike two pictures look: PSNR on 8-bit RGB and SSIM on luma, as performance.md defines them.

Does one pair of frames at a time. Reads nothing and keeps nothing; `agreement` has the plain differences.

    PSNR    10 log10(255^2 / MSE), the mean square taken over all three channels
    SSIM    mean of (2 ma mb + C1)(2 cab + C2) / ((ma^2 + mb^2 + C1)(va + vb + C2)) over all places where an 11x11
            Gaussian window (sigma 1.5, weights adding up to 1) lies wholly inside the picture; m, v, c are the means,
            variances and covariance under that window, C1 = (0.01 * 255)^2, C2 = (0.03 * 255)^2

The window and the two constants are those of the paper that named the measure (Wang et al., 2004); luma is BT.709's, as
in `checks`. Four filtered maps are enough, since only va + vb is needed.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

from h3runtime.media.checks import LUMA

PEAK: Final = 255.0
WINDOW: Final = 11
SIGMA: Final = 1.5
C1: Final = (0.01 * PEAK) ** 2
C2: Final = (0.03 * PEAK) ** 2
MARGIN: Final = WINDOW // 2


def psnr(mean_square: float) -> float | None:
    """dB of a mean squared error in 8-bit levels; None, for infinite, if there is no error."""
    return 10 * math.log10(PEAK**2 / mean_square) if mean_square else None


def ssim(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """uint8 [H, W, 3] twice, sides of 11 or more -> -1..1; 1 for equal pictures. The order doesn't matter."""
    assert a.shape == b.shape and min(a.shape[:2]) >= WINDOW, (a.shape, b.shape)
    x, y = _luma(a), _luma(b)
    mean_x, mean_y = _blurred(x), _blurred(y)
    product, squares = mean_x * mean_y, mean_x * mean_x + mean_y * mean_y
    covariance = _blurred(x * y) - product
    variances = _blurred(x * x + y * y) - squares
    alike = (2 * product + C1) * (2 * covariance + C2) / ((squares + C1) * (variances + C2))
    return float(alike.mean())


def _luma(frame: NDArray[np.uint8]) -> NDArray[np.float64]:
    luma: NDArray[np.float64] = frame.astype(np.float64) @ np.array(LUMA)
    return luma


def _blurred(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """[H, W] -> [W - 10, H - 10]: the windows that lie inside. On its side, since along rows is four times as fast."""
    kernel = np.exp(-0.5 * (np.arange(-MARGIN, MARGIN + 1) / SIGMA) ** 2)
    kernel /= kernel.sum()
    across = correlate1d(plane, kernel, axis=1)[:, MARGIN:-MARGIN]
    both: NDArray[np.float64] = correlate1d(np.ascontiguousarray(across.T), kernel, axis=1)[:, MARGIN:-MARGIN]
    return both

"""SSIM of frames where they were decoded, as performance.md and `media.similarity` define it: luma, an 11x11 Gaussian.

`media.similarity` is the definition, one picture on the host at a time, and on a CPU it is what is asked. On an
accelerator the window is eleven shifted sums along each side, in float64: that is bound by memory, so that even a
device with few float64 units loses nothing. The two differ by less than 1e-9. Fed by `making`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from h3runtime.media.checks import LUMA
from h3runtime.media.similarity import C1, C2, MARGIN, SIGMA, WINDOW, ssim

AT_ONCE: Final = 4
"""Frames: enough to fill a device, with 0.6 GB of maps at 1344x768."""


def frame_ssims(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """uint8 [F, H, W, 3] twice on one device, sides of 11 or more -> float64 [F] there."""
    if a.device.type == "cpu":
        return torch.tensor([ssim(*pair) for pair in zip(a.numpy(), b.numpy(), strict=True)], dtype=torch.float64)
    return shifted_ssims(a, b)


def shifted_ssims(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same, on any device."""
    assert a.shape == b.shape and min(a.shape[1:3]) >= WINDOW, (a.shape, b.shape)
    parts = (slice(start, start + AT_ONCE) for start in range(0, len(a), AT_ONCE))
    return torch.cat([_alike(_luma(a[part]), _luma(b[part])) for part in parts])


def _alike(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """[n, H, W] twice -> [n]."""
    mean_x, mean_y, squares, both = _blurred(torch.stack([x, y, x * x + y * y, x * y])).unbind()
    product, means = mean_x * mean_y, mean_x * mean_x + mean_y * mean_y
    alike = (2 * product + C1) * (2 * (both - product) + C2) / ((means + C1) * (squares - means + C2))
    return alike.mean((1, 2))


def _luma(frames: torch.Tensor) -> torch.Tensor:
    red, green, blue = (frames[..., index].double() * weight for index, weight in enumerate(LUMA))
    return red + green + blue


def _blurred(maps: torch.Tensor) -> torch.Tensor:
    """[..., H, W] -> [..., H - 10, W - 10]: the windows that lie inside."""
    window = np.exp(-0.5 * (np.arange(-MARGIN, MARGIN + 1) / SIGMA) ** 2)
    weights = [float(weight) for weight in window / window.sum()]
    return _along(_along(maps, weights, -1), weights, -2)


def _along(maps: torch.Tensor, weights: list[float], side: int) -> torch.Tensor:
    inside = maps.shape[side] - 2 * MARGIN
    total = maps.narrow(side, 0, inside) * weights[0]
    for start, weight in enumerate(weights[1:], 1):
        total.add_(maps.narrow(side, start, inside), alpha=weight)
    return total

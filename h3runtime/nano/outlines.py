"""Which shape an outline has: the nearest of drawn templates.

    soft cover of one object [n, n] in units of sqrt(its area) -> nearest template -> ball, box, triangle, ring

Knows nothing of frames, colours and places. Fed by `seeing` with the mean cover of an object over its frames. The
centres of gravity of all four shapes are the points that `pictures` draws them around, and blur moves neither centre
nor area: so a cover that is centred and scaled by these two lies on its template, whatever its size and sharpness.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from h3runtime.nano.world import SHAPES

GRID: Final = 28
"""Samples of a cover per axis."""
EXTENT: Final = 1.0
"""A cover reaches this many sqrt(area) from the centre; a triangle's tip is 0.88 away."""
AREAS: Final[dict[str, float]] = {"ball": 3.1416, "box": 2.9584, "triangle": 1.8706, "ring": 2.4177}
"""Of each shape in `pictures`, in squared radii."""
STRETCHES: Final = (0.92, 1.0, 1.08)
BLURS: Final = (0.03, 0.08, 0.14)
"""Standard deviations in sqrt(area): 1.5 pixels on the smallest object there is are 0.14."""


def nearest_shape(cover: NDArray[np.float32]) -> tuple[str, float]:
    """The shape of a mean cover [GRID, GRID], and its squared distance as a share of the cover's square."""
    names, templates = _templates()
    distances = np.square(templates - cover).sum((1, 2)) / max(float(np.square(cover).sum()), 1e-6)
    best = int(distances.argmin())
    return names[best], float(distances[best])


@cache
def sampling_grid() -> NDArray[np.float64]:
    """y and x of a cover's samples, in sqrt(area) from the centre: [2, GRID, GRID]."""
    axis = np.linspace(-EXTENT, EXTENT, GRID)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"))


@cache
def _templates() -> tuple[tuple[str, ...], NDArray[np.float32]]:
    kinds = [(shape, stretch, blur) for shape in SHAPES for stretch in STRETCHES for blur in BLURS]
    covers = np.stack([_drawn(*kind) for kind in kinds]).astype(np.float32)
    return tuple(shape for shape, _, _ in kinds), covers


def _drawn(shape: str, stretch: float, blur: float) -> NDArray[np.float64]:
    """A template: drawn four times as fine, blurred, sampled on the grid."""
    fine = 4 * GRID
    axis = (np.arange(fine) + 0.5) / fine * 2 * EXTENT - EXTENT
    y, x = np.meshgrid(axis, axis, indexing="ij")
    radius = stretch / np.sqrt(AREAS[shape])
    inside = (_distance(shape, x / radius, y / radius) < 0).astype(np.float64)
    soft = ndimage.gaussian_filter(inside, blur * fine / (2 * EXTENT))
    at = (sampling_grid() + EXTENT) / (2 * EXTENT) * fine - 0.5
    sampled: NDArray[np.float64] = ndimage.map_coordinates(soft, at, order=1, mode="nearest")
    return sampled


def _distance(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Negative inside a shape of radius 1: the definitions of `pictures`."""
    match shape:
        case "ball":
            return np.hypot(x, y) - 1
        case "box":
            return np.maximum(np.abs(x), np.abs(y)) - 0.86
        case "triangle":
            return np.maximum(y, np.abs(x) * 0.8660254 - y * 0.5) - 0.6
        case _:
            return np.abs(np.hypot(x, y) - 0.74) - 0.26

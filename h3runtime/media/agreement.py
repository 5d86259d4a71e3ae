"""How far two arrays of one shape are apart: sums that can be added up piece by piece, and the figures made of them.

Does: difference, cosine and relative norm of anything numeric, in float64. Does not: know what the values are (8-bit
levels, samples, latents) or read files. Fed by whatever compares two results, a frame or a block at a time, so that
memory never holds more than one of them; read by reports.

    d = b - a      max |d|, mean |d|, RMSE = sqrt(mean d^2), cosine = <a, b> / (|a| |b|), relative L2 = |d| / |a|

`a` is the reference. Figures that have no finite value are None: JSON knows no infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Agreement:
    """Sums over `count` pairs of values; `Agreement()` is the sum over none. Add two to have both."""

    count: int = 0
    largest: float = 0.0
    absolute: float = 0.0
    squared: float = 0.0
    a_squared: float = 0.0
    b_squared: float = 0.0
    product: float = 0.0

    @classmethod
    def of(cls, a: NDArray[Any], b: NDArray[Any]) -> Agreement:
        """Two finite arrays of the same shape and any real dtype."""
        assert a.shape == b.shape, (a.shape, b.shape)
        if not a.size:
            return cls()
        first, second = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
        difference = np.abs(second - first)
        return cls(
            count=first.size,
            largest=float(difference.max()),
            absolute=float(difference.sum()),
            squared=float(difference @ difference),
            a_squared=float(first @ first),
            b_squared=float(second @ second),
            product=float(first @ second),
        )

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.count + other.count,
            max(self.largest, other.largest),
            self.absolute + other.absolute,
            self.squared + other.squared,
            self.a_squared + other.a_squared,
            self.b_squared + other.b_squared,
            self.product + other.product,
        )

    @property
    def identical(self) -> bool:
        return self.largest == 0

    @property
    def mean(self) -> float:
        return self.absolute / max(self.count, 1)

    @property
    def mean_square(self) -> float:
        return self.squared / max(self.count, 1)

    @property
    def rmse(self) -> float:
        return math.sqrt(self.mean_square)

    @property
    def cosine(self) -> float | None:
        """Exactly 1 if identical; None if one of the two is all zero and the other is not."""
        if self.identical:
            return 1.0
        norms = math.sqrt(self.a_squared) * math.sqrt(self.b_squared)
        return max(-1.0, min(1.0, self.product / norms)) if norms else None

    @property
    def rel_l2(self) -> float | None:
        """0 if identical; None, for infinite, if only `a` is all zero."""
        if self.identical:
            return 0.0
        return math.sqrt(self.squared) / math.sqrt(self.a_squared) if self.a_squared else None

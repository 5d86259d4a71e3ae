"""A recipe: the spread of every tensor by its name, and functions for the tensors that aren't just random.

Fed with names and shapes by `made_files` (whole tensors) and `full_size` (which streams what has no function); the
recipes of the four components are the modules beside this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch

from h3runtime.checkpoint.synthetic.random_values import uniform

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Spread:
    """gain: standard deviation is gain / sqrt(inputs). std: standard deviation itself, about `mean`.

    rows: factors of that many equal groups of consecutive rows, where they differ.
    """

    gain: float | None = None
    std: float = 0.0
    mean: float = 0.0
    rows: tuple[float, ...] = (1.0,)

    def std_of(self, shape: tuple[int, ...]) -> float:
        """Before `rows`."""
        return self.std if self.gain is None else self.gain / math.sqrt(math.prod(shape[1:]))

    def scaled(self, factor: float) -> Spread:
        """Mean and deviation times `factor`."""
        return replace(self, std=self.std * factor, mean=self.mean * factor)


Rules = tuple[tuple[str, Spread], ...]
Maker = Callable[["Recipe", str, tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """rules: (pattern, spread), first match wins. makers: (pattern, function) for tensors that aren't just random."""

    seed: int
    rules: Rules
    makers: tuple[tuple[str, Maker], ...] = ()

    def weights(self, shapes: Shapes) -> Weights:
        """fp32 values for every name; the same names, shapes and seed give the same bits anywhere."""
        return {name: self.tensor(name, shape) for name, shape in shapes.items()}

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        maker = self.maker_of(name)
        return maker(self, name, shape) if maker else self.random(name, shape)

    def random(self, name: str, shape: tuple[int, ...], salt: str = "") -> torch.Tensor:
        """By the rule of `name` alone."""
        spread = self.spread_of(name)
        values = uniform(name + salt, shape, self.seed, spread.std_of(shape), spread.mean)
        if len(spread.rows) > 1:
            factors = torch.tensor(spread.rows).reshape(-1, *[1] * len(shape))
            values.view(len(spread.rows), -1, *shape[1:]).mul_(factors)
        return values

    def maker_of(self, name: str) -> Maker | None:
        return next((make for pattern, make in self.makers if fnmatchcase(name, pattern)), None)

    def spread_of(self, name: str) -> Spread:
        return next(s for pattern, s in self.rules if fnmatchcase(name, pattern))


NORM = Spread(std=0.1, mean=1.0)
BIAS = Spread(std=0.1)


def cycled(values: tuple[float, ...], count: int) -> torch.Tensor:
    """The first `count` of the values, from the start again when they end."""
    return torch.tensor([values[i % len(values)] for i in range(count)])

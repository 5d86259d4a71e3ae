"""Rendered clips of the little world with their scenes, for the tests of the judge."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from h3runtime.nano.pictures import render
from h3runtime.nano.sounds import sound
from h3runtime.nano.world import Actor, Scene, draw_scene

Rendered = tuple[Scene, NDArray[np.uint8], NDArray[np.float32]]


def clip(scene: Scene, width: int = 128, height: int = 128, frames: int = 22) -> Rendered:
    """One scene with its frames uint8 [F, H, W, 3] and samples float32 [2, N]."""
    return next(clips([scene], width, height, frames))


def drawn(count: int, width: int, height: int, frames: int, seed: int = 0) -> Iterator[Rendered]:
    """Scenes by lot, of every combination, rendered a few at a time."""
    rng = np.random.default_rng(seed)
    for done in range(0, count, 10):
        yield from clips([draw_scene(rng, "any") for _ in range(min(10, count - done))], width, height, frames)


def clips(scenes: list[Scene], width: int, height: int, frames: int) -> Iterator[Rendered]:
    yield from zip(scenes, render(scenes, width, height, frames).numpy(), sound(scenes, frames).numpy(), strict=True)


def lone(colour: str = "red", shape: str = "ball", motion: str = "bounce", **more: float) -> Actor:
    """One actor in the middle, with round numbers."""
    facts = {"x": 0.5, "y": 0.5, "radius": 0.17, "travel": 0.48, "first": 0.5} | more
    if motion == "bounce" and "first" not in more:
        facts["first"] = 5.0
    return Actor(colour, shape, motion, period=int(facts.pop("period", 12)), **facts)

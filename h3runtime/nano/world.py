"""A little world of shapes that move and sound: what a scene is, how one is drawn by lot, and where everything is when.

    Scene -> Track per actor: x, y, radius, visible for every frame; impacts in seconds

Numbers only: `pictures` and `sounds` render, `captions` words it, `judge` compares. A scene is one or two actors on a
floor. Each actor has a colour, a shape and a motion; its shape decides the pitch, its motion the rhythm, its place the
pan. Places are shares of the canvas (x to the right, y down), sizes are shares of the short side, so that one scene can
be rendered at any size and length.

Made to be learnt by a small model: flat colours, shapes of many latents' size, tones whose periods divide a latent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import FPS

RGB = tuple[int, int, int]
Split = Literal["trained", "held_out", "any"]

COLOURS: Final[dict[str, RGB]] = {
    "red": (225, 45, 45),
    "green": (60, 190, 75),
    "blue": (60, 100, 235),
    "yellow": (240, 210, 60),
    "purple": (165, 70, 200),
    "orange": (240, 135, 40),
    "white": (235, 235, 235),
}
FLOORS: Final[dict[str, RGB]] = {
    "blue": (40, 70, 150),
    "green": (35, 110, 60),
    "red": (140, 40, 45),
    "purple": (95, 50, 130),
    "grey": (110, 110, 115),
}
"""Colours of the floor; the wall above it has `WALL_SHADE` of it. Darker than every actor."""
WALL_SHADE: Final = 0.4
FLOOR_LINE: Final = 0.8
"""Where the floor begins, as a share of the height."""
PITCHES: Final[dict[str, float]] = {"box": 200.0, "ball": 320.0, "triangle": 520.0, "ring": 840.0}
"""Hz, multiples of 40: whole periods in one audio latent, so a steady tone is a steady latent."""
SHAPES: Final = ("ball", "box", "triangle", "ring")
MOTIONS: Final = ("right", "left", "up", "down", "bounce", "grow", "shrink", "appear", "still")
TIMBRES: Final[dict[str, tuple[float, ...]]] = {
    "pure": (1.0,),
    "bright": (1.0, 0.6, 0.4),
    "hollow": (1.0, 0.0, 0.6),
}
"""Amplitudes of the harmonics 1, 2, 3."""
PLACES: Final[dict[str, float]] = {"left": 0.25, "middle": 0.5, "right": 0.75}
"""x of an actor whose place is told."""
GROUND: Final = 0.9
"""Height on which the lower end of a bouncing actor lands."""


@dataclass(frozen=True, slots=True)
class Actor:
    """x, y: where it is, or where the middle of its way is. radius: its largest.

    travel: length of its way, as a share of the width (left, right) or the height (up, down, bounce).
    period: frames from impact to impact; first: the frame of the first one (bounce), or when it appears (appear), as a
    share of the clip.
    """

    colour: str
    shape: str
    motion: str
    x: float
    y: float
    radius: float
    travel: float = 0.0
    period: int = 12
    first: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """place: the word for x that the caption has to say, or None where it may be anywhere. sound: False is silence."""

    actors: tuple[Actor, ...]
    floor: str
    sound: bool = True
    timbre: str = "pure"
    place: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One actor through a clip of F frames. x, y, radius float64 [F]; visible bool [F]; impacts: seconds."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    radius: NDArray[np.float64]
    visible: NDArray[np.bool_]
    impacts: tuple[float, ...] = ()


def is_held_out(colour: str, shape: str, motion: str) -> bool:
    """Whether no trained clip has this combination: 1 in 7, every pair of the three still occurs in training."""
    indices = list(COLOURS).index(colour), SHAPES.index(shape), MOTIONS.index(motion)
    return (indices[0] + 2 * indices[1] + 3 * indices[2]) % 7 == 0


def combinations(split: Split = "any") -> list[tuple[str, str, str]]:
    """(colour, shape, motion) of one side of the split."""
    every = [(c, s, m) for c in COLOURS for s in SHAPES for m in MOTIONS]
    return every if split == "any" else [t for t in every if is_held_out(*t) == (split == "held_out")]


def draw_scene(rng: np.random.Generator, split: Split = "trained", actors: int | None = None) -> Scene:
    """A scene by lot. `actors` 1 or 2, drawn if None (a quarter have two)."""
    count = actors or (2 if rng.random() < 0.25 else 1)
    place = str(rng.choice(list(PLACES))) if count == 1 and rng.random() < 0.35 else None
    found: list[Actor] = []
    for x in _places(rng, count, place):
        found.append(_draw_actor(rng, split, x, found, travels=count == 1 and place is None))
    floors = [floor for floor in FLOORS if all(actor.colour != floor for actor in found)]
    timbre = str(rng.choice(list(TIMBRES))) if rng.random() < 0.3 else "pure"
    return Scene(tuple(found), str(rng.choice(floors)), bool(rng.random() > 0.12), timbre, place)


def _places(rng: np.random.Generator, count: int, place: str | None) -> list[float]:
    if count == 2:
        return [PLACES["left"], PLACES["right"]]
    return [PLACES[place] if place else float(rng.uniform(0.25, 0.75))]


def _draw_actor(rng: np.random.Generator, split: Split, x: float, others: Sequence[Actor], travels: bool) -> Actor:
    taken = {a.colour for a in others} | {a.shape for a in others}
    options = [t for t in combinations(split) if (travels or t[2] not in ("left", "right")) and not taken & set(t[:2])]
    colour, shape, motion = options[rng.integers(len(options))]
    radius = float(rng.uniform(0.14, 0.19))
    period = int(rng.integers(10, 17))
    return Actor(
        colour,
        shape,
        motion,
        0.5 + float(rng.uniform(-0.04, 0.04)) if motion in ("left", "right") else x,
        float(rng.uniform(0.46, 0.56)),
        radius,
        travel=float(rng.uniform(0.42, 0.52)),
        period=period,
        first=float(rng.uniform(2, period)) if motion == "bounce" else float(rng.uniform(0.35, 0.6)),
    )


def track(actor: Actor, frames: int, aspect: float = 1.0) -> Track:
    """Where an actor is in each of `frames` frames. aspect: height over short side, at least 1."""
    u = np.linspace(0.0, 1.0, frames)
    x, y = np.full(frames, actor.x), np.full(frames, actor.y)
    radius, visible = np.full(frames, actor.radius), np.ones(frames, bool)
    impacts: tuple[float, ...] = ()
    match actor.motion:
        case "right" | "left":
            x = x + actor.travel * (u - 0.5) * (1 if actor.motion == "right" else -1)
        case "up" | "down":
            y = y + actor.travel * (u - 0.5) * (1 if actor.motion == "down" else -1)
        case "bounce":
            y, impacts = _bounces(actor, frames, aspect)
        case "grow" | "shrink":
            share = u if actor.motion == "grow" else 1 - u
            radius = radius * (0.45 + 0.75 * share)
        case "appear":
            visible = u >= actor.first
    return Track(x, y, radius, visible, impacts)


def _bounces(actor: Actor, frames: int, aspect: float) -> tuple[NDArray[np.float64], tuple[float, ...]]:
    """Parabolas between impacts; an impact is when the lower end touches the ground."""
    frame = np.arange(frames)
    phase = ((frame - actor.first) / actor.period) % 1.0
    lowest = GROUND - reach(actor.shape) * actor.radius / aspect
    y = lowest - actor.travel * 4 * phase * (1 - phase)
    first = np.arange(actor.first, frames - 0.5, actor.period)
    return y, tuple(float(f) / FPS for f in first)


def reach(shape: str) -> float:
    """From the centre of a shape down to its lower end, in radii."""
    return {"ball": 1.0, "box": 0.86, "triangle": 0.6, "ring": 1.0}[shape]

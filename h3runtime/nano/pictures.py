"""Scenes as frames: flat shapes with smooth edges on a floor and a wall, many clips at once on any device.

Drawn from signed distances, in units of pixels: coverage = clamp(1/2 - distance / EDGE, 0, 1). Fed by the training, the
judge's tests and the benchmarks with scenes from `world`; the frames are uint8, as those of a real clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.nano.world import COLOURS, FLOOR_LINE, FLOORS, SHAPES, WALL_SHADE, Scene, track

EDGE: Final = 2.0
"""Pixels over which a shape fades out. Half as wide, 192 principal components of the VAE's patches reach 32.6 dB, and
24 of them 26.5 dB; so 35.2 and 27.3: a small decoder has less to learn that nobody looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """Actors that are drawn together: `clips` [n] they belong to; values [n, F, 3] x, y, radius in pixels, a negative
    radius while out of sight; kinds [n] into `SHAPES`; paint [n, 3] in 0..1."""

    clips: NDArray[np.int64]
    values: NDArray[np.float32]
    kinds: NDArray[np.int64]
    paint: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Everything that `draw` needs of B scenes, as arrays. floors [B, 3] in 0..1; one cast per actor's number."""

    width: int
    height: int
    frames: int
    floors: NDArray[np.float32]
    casts: tuple[Cast, ...]


def render(
    scenes: Sequence[Scene], width: int, height: int, frames: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Clips uint8 [B, F, H, W, 3] of the scenes."""
    return draw(stage(scenes, width, height, frames), device)


def stage(scenes: Sequence[Scene], width: int, height: int, frames: int) -> Stage:
    """Where everything is: plain arrays, which another process may make ahead of time."""
    floors = (np.array([FLOORS[scene.floor] for scene in scenes]) / 255).astype(np.float32)
    most = max(len(scene.actors) for scene in scenes)
    return Stage(width, height, frames, floors, tuple(_cast(scenes, i, width, height, frames) for i in range(most)))


def draw(stage: Stage, device: torch.device | str = "cpu") -> torch.Tensor:
    """Clips uint8 [B, F, H, W, 3] of a stage."""
    pictures = _backgrounds(stage, device).unsqueeze(1).repeat(1, stage.frames, 1, 1, 1)
    for cast in stage.casts:
        clips = torch.from_numpy(cast.clips).to(device)
        part = pictures[clips]
        kinds, paint = torch.from_numpy(cast.kinds).to(device), torch.from_numpy(cast.paint).to(device)
        _blend(part, _distance(torch.from_numpy(cast.values).to(device), kinds, stage.width, stage.height), paint)
        pictures[clips] = part
    return (pictures * 255).round().clamp(0, 255).to(torch.uint8)


def portrait(
    colour: str, shape: str, width: int, height: int, device: torch.device | str = "cpu", *, share: float = 0.28
) -> torch.Tensor:
    """A reference picture, uint8 [H, W, 3]: one object amid grey, its radius `share` of the short side."""
    picture = torch.full((1, 1, height, width, 3), 0.5, device=device)
    values = torch.tensor([[[0.5 * width, 0.5 * height, share * min(width, height)]]], device=device)
    kinds = torch.tensor([SHAPES.index(shape)], device=device)
    paint = torch.tensor([COLOURS[colour]], device=device) / 255
    _blend(picture, _distance(values, kinds, width, height), paint)
    return (picture[0, 0] * 255).round().to(torch.uint8)


def _backgrounds(stage: Stage, device: torch.device | str) -> torch.Tensor:
    """[B, H, W, 3]: wall above, floor below, one pixel of soft edge."""
    floor = torch.from_numpy(stage.floors).to(device).view(-1, 1, 1, 3)
    rows = torch.arange(stage.height, device=device) + 0.5
    share = (rows - FLOOR_LINE * stage.height + 0.5).clamp(0, 1).view(1, -1, 1, 1)
    return (floor * WALL_SHADE * (1 - share) + floor * share).expand(-1, -1, stage.width, -1)


def _cast(scenes: Sequence[Scene], index: int, width: int, height: int, frames: int) -> Cast:
    """Actor `index` of every scene that has one."""
    clips = [i for i, scene in enumerate(scenes) if len(scene.actors) > index]
    actors = [scenes[i].actors[index] for i in clips]
    short = min(width, height)
    places = []
    for actor in actors:
        t = track(actor, frames, height / short)
        places.append(np.stack([t.x * width, t.y * height, np.where(t.visible, t.radius, -1.0) * short], -1))
    return Cast(
        np.array(clips, np.int64),
        np.stack(places).astype(np.float32),
        np.array([SHAPES.index(actor.shape) for actor in actors], np.int64),
        (np.array([COLOURS[actor.colour] for actor in actors]) / 255).astype(np.float32),
    )


def _distance(values: torch.Tensor, kinds: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Signed distance in pixels [n, F, H, W] to shapes of `kinds` [n], values [n, F, 3] as in `Cast`."""
    device = values.device
    x = torch.arange(width, device=device) + 0.5 - values[..., 0, None]
    y = torch.arange(height, device=device) + 0.5 - values[..., 1, None]
    x, y, r = x[:, :, None, :], y[:, :, :, None], values[..., 2, None, None]
    kind = kinds.view(-1, 1, 1, 1)
    centre = (x.square() + y.square()).sqrt()
    distance = torch.where(kind == SHAPES.index("ball"), centre - r, 0.0)
    distance = torch.where(kind == SHAPES.index("box"), torch.maximum(x.abs(), y.abs()) - 0.86 * r, distance)
    sides = torch.maximum(y, x.abs() * 0.8660254 - y * 0.5) - 0.6 * r
    distance = torch.where(kind == SHAPES.index("triangle"), sides, distance)
    distance = torch.where(kind == SHAPES.index("ring"), (centre - 0.74 * r).abs() - 0.26 * r, distance)
    return torch.where(r < 0, 1.0, distance)


def _blend(pictures: torch.Tensor, distance: torch.Tensor, paint: torch.Tensor) -> None:
    """Paint [n, 3] over pictures [n, F, H, W, 3], in place."""
    cover = (0.5 - distance / EDGE).clamp(0, 1).unsqueeze(-1)
    pictures.lerp_(paint.view(-1, 1, 1, 1, 3).expand_as(pictures), cover.expand_as(pictures))

"""Scenes as frames: flat shapes with smooth edges on a floor and a wall, many clips at once on any device.

Drawn from signed distances, in units of pixels: coverage = clamp(1/2 - distance, 0, 1). Fed by the training, the
judge's tests and the benchmarks with scenes from `world`; the frames are uint8, as those of a real clip.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from h3runtime.nano.world import COLOURS, FLOOR_LINE, FLOORS, SHAPES, WALL_SHADE, Scene, track


def render(
    scenes: Sequence[Scene], width: int, height: int, frames: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Clips uint8 [B, F, H, W, 3] of the scenes."""
    pictures = _backgrounds(scenes, width, height, device).unsqueeze(1).repeat(1, frames, 1, 1, 1)
    for index in range(max(len(scene.actors) for scene in scenes)):
        _paint(pictures, scenes, index)
    return (pictures * 255).round().clamp(0, 255).to(torch.uint8)


def portrait(scene: Scene, width: int, height: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """The scene's first actor alone, large and in the middle of grey: a reference picture, uint8 [H, W, 3]."""
    picture = torch.full((1, 1, height, width, 3), 0.5, device=device)
    short = min(width, height)
    values = torch.tensor([[0.5 * width, 0.5 * height, 0.28 * short]], device=device)
    _blend(picture, _distance(values[:, None], [scene.actors[0].shape], width, height), [scene.actors[0].colour])
    return (picture[0, 0] * 255).round().to(torch.uint8)


def _backgrounds(scenes: Sequence[Scene], width: int, height: int, device: torch.device | str) -> torch.Tensor:
    """[B, H, W, 3]: wall above, floor below, one pixel of soft edge."""
    floor = torch.tensor([FLOORS[scene.floor] for scene in scenes], device=device) / 255
    rows = torch.arange(height, device=device) + 0.5
    share = (rows - FLOOR_LINE * height + 0.5).clamp(0, 1).view(1, height, 1, 1)
    floor = floor.view(-1, 1, 1, 3)
    return (floor * WALL_SHADE * (1 - share) + floor * share).expand(-1, -1, width, -1)


def _paint(pictures: torch.Tensor, scenes: Sequence[Scene], index: int) -> None:
    """Actor `index` of every scene that has one, over what is there."""
    _, frames, height, width, _ = pictures.shape
    at = [i for i, scene in enumerate(scenes) if len(scene.actors) > index]
    actors = [scenes[i].actors[index] for i in at]
    short = min(width, height)
    places = []
    for actor in actors:
        t = track(actor, frames, height / short)
        places.append(np.stack([t.x * width, t.y * height, np.where(t.visible, t.radius, -1.0) * short], -1))
    values = torch.tensor(np.stack(places), dtype=torch.float32, device=pictures.device)
    part = pictures[at]
    _blend(part, _distance(values, [actor.shape for actor in actors], width, height), [a.colour for a in actors])
    pictures[at] = part


def _distance(values: torch.Tensor, shapes: Sequence[str], width: int, height: int) -> torch.Tensor:
    """Signed distance in pixels [B, F, H, W] to shapes whose values [B, F, 3] are x, y, radius in pixels; a negative
    radius is nowhere."""
    device = values.device
    x = torch.arange(width, device=device) + 0.5 - values[..., 0, None]
    y = torch.arange(height, device=device) + 0.5 - values[..., 1, None]
    x, y, r = x[:, :, None, :], y[:, :, :, None], values[..., 2, None, None]
    kind = torch.tensor([SHAPES.index(shape) for shape in shapes], device=device).view(-1, 1, 1, 1)
    centre = (x.square() + y.square()).sqrt()
    distance = torch.where(kind == SHAPES.index("ball"), centre - r, 0.0)
    distance = torch.where(kind == SHAPES.index("box"), torch.maximum(x.abs(), y.abs()) - 0.86 * r, distance)
    sides = torch.maximum(y, x.abs() * 0.8660254 - y * 0.5) - 0.6 * r
    distance = torch.where(kind == SHAPES.index("triangle"), sides, distance)
    distance = torch.where(kind == SHAPES.index("ring"), (centre - 0.74 * r).abs() - 0.26 * r, distance)
    return torch.where(r < 0, 1.0, distance)


def _blend(pictures: torch.Tensor, distance: torch.Tensor, colours: Sequence[str]) -> None:
    paint = torch.tensor([COLOURS[colour] for colour in colours], device=pictures.device) / 255
    cover = (0.5 - distance).clamp(0, 1).unsqueeze(-1)
    pictures.lerp_(paint.view(-1, 1, 1, 1, 3).expand_as(pictures), cover.expand_as(pictures))

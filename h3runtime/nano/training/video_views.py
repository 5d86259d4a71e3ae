"""Windows on moving scenes, rendered on the device in a few dozen kernels: what the video VAE learns to reconstruct.

    draw_pool   scenes of the world by lot, their tracks, as arrays (CPU, seconds, once)
    ScenePool   those arrays on the device
    views       B of them at random: zoomed, cropped, as pixels

A view is what one tile of the VAE sees: a whole small clip, or a window on a larger one. Some scenes wear random
colours, and some are portraits (the first actor on grey), as the references are. A whole view of an unaltered landscape
scene is what `pictures.render` makes, value by value (a test says so).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.nano.pictures import EDGE
from h3runtime.nano.world import COLOURS, FLOOR_LINE, FLOORS, RGB, SHAPES, WALL_SHADE, Actor, Scene, draw_scene, track

VIEW_FRAMES = 22
"""Two encoder pieces, one decoder piece."""
LENGTHS = (22, 22, 22, 39, 56, 124)
"""Clips that the 22 frames are a part of: the same way takes longer in a longer one."""
ACTORS = 2
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Variety:
    """Shares of the pool: scenes in random colours, portraits. zoomed: share of the views that are windows, on a canvas
    up to `zoom` times as large."""

    recoloured: float = 0.15
    portraits: float = 0.08
    zoomed: float = 0.35
    zoom: float = 2.5


@dataclass(frozen=True, slots=True)
class ScenePool:
    """N scenes of two actors; a missing one has radius -1 in every frame.

    tracks [N, 2, F, 3]: x, y, radius as shares. kinds [N, 2]: index of the shape. paints [N, 2, 3], floors, walls
    [N, 3]: colours in [0, 1].
    """

    tracks: torch.Tensor
    kinds: torch.Tensor
    paints: torch.Tensor
    floors: torch.Tensor
    walls: torch.Tensor

    def to(self, device: torch.device) -> ScenePool:
        parts = (self.tracks, self.kinds, self.paints, self.floors, self.walls)
        return ScenePool(*(part.to(device) for part in parts))


def draw_pool(count: int, seed: int, variety: Variety | None = None) -> ScenePool:
    """`count` scenes of the trained split; with `variety`, altered and cut from clips of several lengths."""
    rng = np.random.default_rng(seed)
    return pool_of([draw_scene(rng) for _ in range(count)], rng, variety)


def pool_of(scenes: list[Scene], rng: np.random.Generator, variety: Variety | None = None) -> ScenePool:
    """The scenes as tensors on the CPU."""
    parts = [_described(scene, rng, variety) for scene in scenes]
    tracks, kinds, paints, floors, walls = (torch.from_numpy(np.stack(part)) for part in zip(*parts, strict=True))
    return ScenePool(tracks, kinds, paints, floors, walls)


def _described(
    scene: Scene, rng: np.random.Generator, variety: Variety | None
) -> tuple[Array, NDArray[np.int64], Array, Array, Array]:
    tracks = np.full((ACTORS, VIEW_FRAMES, 3), -1, np.float32)
    length = int(rng.choice(LENGTHS)) if variety else VIEW_FRAMES
    begin = int(rng.integers(length - VIEW_FRAMES + 1))
    kinds, paints = np.zeros(ACTORS, np.int64), np.zeros((ACTORS, 3), np.float32)
    for index, actor in enumerate(scene.actors):
        tracks[index] = _seen(actor, length)[begin : begin + VIEW_FRAMES]
        kinds[index], paints[index] = SHAPES.index(actor.shape), _shares(COLOURS[actor.colour])
    floor = _shares(FLOORS[scene.floor])
    wall: Array = floor * np.float32(WALL_SHADE)
    lot = rng.random()
    if variety and lot < variety.portraits:
        tracks[0], tracks[1] = (0.5, 0.5, 0.28), -1
        floor = wall = np.full(3, 0.5, np.float32)
    elif variety and lot < variety.portraits + variety.recoloured:
        paints, floor, wall = (rng.random(shape).astype(np.float32) for shape in ((ACTORS, 3), 3, 3))
    return tracks, kinds, paints, floor, wall


def _shares(colour: RGB) -> Array:
    return np.array(colour, np.float32) / np.float32(255)


def _seen(actor: Actor, length: int) -> Array:
    t = track(actor, length)
    return np.stack([t.x, t.y, np.where(t.visible, t.radius, -1.0)], -1).astype(np.float32)


def views(
    pool: ScenePool, index: torch.Tensor, width: int, height: int, canvas: torch.Tensor, corner: torch.Tensor
) -> torch.Tensor:
    """fp32 [B, F, height, width, 3] of whole numbers 0..255: windows at `corner` [B, 2] (x, y, whole pixels) on
    canvases [B, 2] (width, height)."""
    size = canvas.view(-1, 1, 1, 2)
    short = canvas.amin(1).view(-1, 1, 1)
    tracks = pool.tracks[index]
    places = tracks[..., :2] * size
    radius = torch.where(tracks[..., 2] < 0, -1.0, tracks[..., 2]) * short
    x = torch.arange(width, device=index.device) + 0.5 + corner[:, :1]
    y = torch.arange(height, device=index.device) + 0.5 + corner[:, 1:]
    pictures = _backgrounds(pool, index, y, canvas[:, 1:], width)
    for actor in range(ACTORS):
        distance = _distance(x, y, places[:, actor], radius[:, actor], pool.kinds[index, actor])
        cover = (0.5 - distance / EDGE).clamp_(0, 1).unsqueeze(-1)
        pictures = pictures.lerp(pool.paints[index, actor].view(-1, 1, 1, 1, 3), cover)
    return (pictures * 255).round_()


def random_views(
    pool: ScenePool, count: int, width: int, height: int, variety: Variety, generator: torch.Generator
) -> torch.Tensor:
    """`views` by lot; generator: of the pool's device."""
    device = pool.floors.device
    lots = torch.rand(5, count, device=device, generator=generator)
    index = (lots[0] * pool.floors.shape[0]).long()
    zoom = torch.where(lots[1] < variety.zoomed, 1 + (variety.zoom - 1) * lots[2], 1.0)
    wide, high = (zoom * width).round(), (zoom * height).round()
    canvas = torch.stack([wide, high], 1)
    corner = torch.stack([(wide - width) * lots[3], (high - height) * lots[4]], 1).floor()
    return views(pool, index, width, height, canvas, corner)


def _backgrounds(
    pool: ScenePool, index: torch.Tensor, y: torch.Tensor, height: torch.Tensor, width: int
) -> torch.Tensor:
    share = (y - FLOOR_LINE * height + 0.5).clamp(0, 1).view(len(index), 1, -1, 1, 1)
    floor, wall = pool.floors[index].view(-1, 1, 1, 1, 3), pool.walls[index].view(-1, 1, 1, 1, 3)
    return (wall * (1 - share) + floor * share).expand(-1, VIEW_FRAMES, -1, width, -1)


def _distance(
    x: torch.Tensor, y: torch.Tensor, places: torch.Tensor, radius: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """Signed distance in pixels [B, F, h, w] from x [B, w], y [B, h] to shapes at places [B, F, 2]; see `pictures`."""
    x = (x.unsqueeze(1) - places[..., :1]).unsqueeze(2)
    y = (y.unsqueeze(1) - places[..., 1:]).unsqueeze(3)
    r, kinds = radius[..., None, None], kinds.view(-1, 1, 1, 1)
    centre = (x.square() + y.square()).sqrt_()
    distance = torch.where(kinds == SHAPES.index("ring"), (centre - 0.74 * r).abs() - 0.26 * r, centre - r)
    box = torch.maximum(x.abs(), y.abs()) - 0.86 * r
    distance = torch.where(kinds == SHAPES.index("box"), box, distance)
    sides = torch.maximum(y, x.abs() * 0.8660254 - y * 0.5) - 0.6 * r
    distance = torch.where(kinds == SHAPES.index("triangle"), sides, distance)
    return torch.where(r < 0, 1.0, distance)

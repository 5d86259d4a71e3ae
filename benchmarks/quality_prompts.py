"""Scenes of the little world by lot, their captions and the requests that ask for them.

Scene i of a split is the same on every machine, whatever else is asked for: a generator of its own draws it, words it
and gives its noise a seed. `trained` are combinations that were trained in scenes that weren't; `held_out` are
combinations of colour, shape and motion that no trained clip has. Pictures and voices are drawn from the scene itself.
Fed by `quality`; the requests are judged by the runtime's own rules in `quality_engines`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.quality_plan import Size
from h3runtime.media.sound import write_sound
from h3runtime.nano.captions import caption
from h3runtime.nano.pictures import portrait, render
from h3runtime.nano.sounds import voice
from h3runtime.nano.world import Scene, Split, draw_scene

TASKS = ("t2va", "i2va", "l2va", "fl2va", "picture", "voice")
"""Of the runtime's tasks the first four; the others are Ref2VA with a picture of the object, and with a voice beside
it whose timbre the clip takes (a voice alone is no request)."""
SPLITS: tuple[Split, ...] = tuple(split for split in get_args(Split) if split != "any")
PORTRAIT_SIDE = 64
VOICE_PITCHES = (280.0, 400.0, 600.0)
"""Of the references that the model in the package was trained on, in pixels and Hz; others it doesn't know yet."""
VOICE_LATENTS = 80
"""Two seconds, the shortest that a request may use (conditioning contract §3.3)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """noise: the seed of its latents."""

    task: str
    split: Split
    index: int
    scene: Scene
    caption: str
    noise: int


def draw_prompt(task: str, split: Split, index: int, seed: int = 0) -> Prompt:
    """A voice is asked for of scenes that sound; nothing else about a scene depends on the task."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    scene = draw_scene(rng, split)
    while task == "voice" and not scene.sound:
        scene = draw_scene(rng, split)
    words = caption(scene, rng, pictured=task in ("picture", "voice"), heard=task == "voice")
    return Prompt(task, split, index, scene, words, int(rng.integers(2**63)))


@dataclass(frozen=True, slots=True)
class Ends:
    """First and last frame of the scene, uint8 [H, W, 3]; those that the clip was given."""

    first: NDArray[np.uint8] | None = None
    last: NDArray[np.uint8] | None = None


def ends_of(prompt: Prompt, size: Size) -> Ends:
    if prompt.task not in ("i2va", "l2va", "fl2va"):
        return Ends()
    frames = render([prompt.scene], size.width, size.height, size.frames)[0].numpy()
    return Ends(None if prompt.task == "l2va" else frames[0], None if prompt.task == "i2va" else frames[-1])


def request_of(prompt: Prompt, size: Size, ends: Ends, folder: Path) -> dict[str, Any]:
    """As a client would send it; its media lie in `folder`, over those of the request before."""
    request: dict[str, Any] = {
        "prompt": prompt.caption,
        "width": size.width,
        "height": size.height,
        "frames": size.frames,
        "seed": str(prompt.noise),
    }
    if ends.first is not None:
        request["first_frame"] = _picture(ends.first, folder / "first.png")
    if ends.last is not None:
        request["last_frame"] = _picture(ends.last, folder / "last.png")
    if prompt.task in ("picture", "voice"):
        request["references"] = list(_references(prompt, folder))
    return request


def _references(prompt: Prompt, folder: Path) -> Iterator[dict[str, Any]]:
    actor = prompt.scene.actors[0]
    pixels = portrait(actor.colour, actor.shape, PORTRAIT_SIDE, PORTRAIT_SIDE).numpy()
    yield {"type": "image", "source": _picture(pixels, folder / "reference.png")}
    if prompt.task == "voice":
        path = folder / "voice.wav"
        pitch = VOICE_PITCHES[prompt.index % len(VOICE_PITCHES)]
        write_sound(path, voice(prompt.scene.timbre, pitch, VOICE_LATENTS).numpy(), overwrite=True)
        yield {"type": "audio", "source": {"path": str(path)}}


def _picture(pixels: NDArray[np.uint8], path: Path) -> dict[str, str]:
    Image.fromarray(pixels).save(path)
    return {"path": str(path)}

"""Scenes in words: a small English grammar with synonyms.

    [opening] a COLOUR SHAPE VERB [PLACE] [and a COLOUR SHAPE VERB] on a COLOUR floor[, SOUND][.]

With references the subject is `<Picture 1>` instead of colour and shape, or the timbre is that of `<Audio 1>`. Fed with
scenes by the training, the benchmarks and the tests.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from h3runtime.nano.world import Actor, Scene

COLOUR_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "red": ("red", "red", "crimson"),
    "green": ("green", "green", "emerald"),
    "blue": ("blue", "blue", "azure"),
    "yellow": ("yellow", "yellow", "golden"),
    "purple": ("purple", "purple", "violet"),
    "orange": ("orange",),
    "white": ("white",),
}
SHAPE_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "ball": ("ball", "ball", "sphere", "disc"),
    "box": ("box", "box", "square", "cube"),
    "triangle": ("triangle", "triangle", "pyramid"),
    "ring": ("ring", "ring", "hoop"),
}
VERBS: Final[dict[str, tuple[str, ...]]] = {
    "right": ("moving right", "moving to the right", "rolling to the right", "sliding right", "moves to the right"),
    "left": ("moving left", "moving to the left", "rolling to the left", "sliding left", "moves to the left"),
    "up": ("rising", "moving up", "floating up", "going up", "rises"),
    "down": ("sinking", "moving down", "falling", "going down", "sinks"),
    "bounce": ("bouncing", "bouncing", "jumping", "hopping", "bouncing up and down", "bounces"),
    "grow": ("growing", "getting bigger", "swelling", "grows"),
    "shrink": ("shrinking", "getting smaller", "shrinks"),
    "appear": ("appearing", "popping up", "showing up", "appears"),
    "still": ("standing still", "resting", "lying still", "rests", ""),
}
PLACE_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "left": ("on the left",),
    "middle": ("in the middle", "in the center"),
    "right": ("on the right",),
}
OPENINGS: Final = ("", "", "", "There is ", "A video of ", "We see ")
GROUNDS: Final = (
    "on a {} floor",
    "on a {} floor",
    "on a {} floor",
    "on {} floor",
    "on {} ground",
    "over a {} floor",
    "above a {} floor",
)
SILENCES: Final = ("in silence", "without a sound", "silently", "with no sound")
TIMBRE_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "pure": ("with a pure tone", "sounding soft"),
    "bright": ("with a bright tone", "sounding bright"),
    "hollow": ("with a hollow tone", "sounding hollow"),
}
BARE: Final = 0.1
"""Share of the subjects without an article, as people type them."""
PICTURED: Final = ("the object in <Picture 1>", "the thing from <Picture 1>", "<Picture 1>")
HEARD: Final = ("sounding like <Audio 1>", "with the sound of <Audio 1>")


def caption(scene: Scene, rng: np.random.Generator, *, pictured: bool = False, heard: bool = False) -> str:
    """One of many ways to say the scene. pictured: the first actor is `<Picture 1>`. heard: the timbre is
    `<Audio 1>`'s."""
    subjects = [_subject(scene, actor, rng, pictured and i == 0) for i, actor in enumerate(scene.actors)]
    ground = _one(GROUNDS, rng).format(scene.floor)
    text = f"{_one(OPENINGS, rng)}{' and '.join(subjects)} {ground}{_sound(scene, rng, heard)}"
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    return text + ("." if rng.random() < 0.4 else "")


def _subject(scene: Scene, actor: Actor, rng: np.random.Generator, pictured: bool) -> str:
    colour, shape = _one(COLOUR_WORDS[actor.colour], rng), _one(SHAPE_WORDS[actor.shape], rng)
    article = "an " if colour[0] in "aeiou" else "a "
    if rng.random() < BARE:
        article = ""
    name = _one(PICTURED, rng) if pictured else f"{article}{colour} {shape}"
    place = _one(PLACE_WORDS[scene.place], rng) if scene.place else ""
    return " ".join(part for part in (name, _one(VERBS[actor.motion], rng), place) if part)


def _sound(scene: Scene, rng: np.random.Generator, heard: bool) -> str:
    if not scene.sound:
        return f", {_one(SILENCES, rng)}"
    if heard:
        return f", {_one(HEARD, rng)}"
    if scene.timbre != "pure" or rng.random() < 0.1:
        return f", {_one(TIMBRE_WORDS[scene.timbre], rng)}"
    return ""


def _one(options: tuple[str, ...], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]

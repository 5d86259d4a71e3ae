"""One master -> the tensors and metadata of a derived file.

    weights in their stored dtypes, linears to be quantised as FP64 -> `storage.pack` -> tensors as published

The bytes are the same on every machine: all arithmetic is element by element, but for the sums of the INT8 rotation,
and these are exact in FP64, in whatever order they are made (products of a BF16 value, 8 bits, with a power of two; 256
of them fit into 53 bits unless their exponents differ by more than 37).

Fed by `sets`; metadata says whose weights these are, which loading and `inspect` tell on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from h3runtime.checkpoint.embedded.formats import DerivedFile
from h3runtime.checkpoint.embedded.masters import Weights
from h3runtime.checkpoint.families import Component
from h3runtime.checkpoint.file import CONFIG_KEY
from h3runtime.checkpoint.model_name import FRAMES_KEY, MASTERS_KEY, MODEL_KEY, NANO, told_frames
from h3runtime.checkpoint.synthetic.storage import pack

TOLD: Mapping[str, object] = {"vision_num_heads": 2, "deepstack_visual_indexes": [0]}
"""What the shapes of the encoder's vision tower can't tell; `nano.model` says the same, and a test compares."""
TRAINED_FRAMES = (22, 124)
"""Shortest and longest clip that the transformer was trained on; `nano.training` says the same, and a test compares."""


def tensors(file: DerivedFile, weights: Weights) -> Weights:
    """As the file stores them. ValueError for weights that aren't finite."""
    wide = {
        name: weight.double() if file.storage.scheme_of(name, tuple(weight.shape)) is not None else weight
        for name, weight in weights.items()
    }
    return pack(wide, file.storage)


def metadata(file: DerivedFile, weights: Weights, trained: str) -> dict[str, str]:
    """trained: `Listing.trained`, by which files that belong together are known."""
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    whose = {MODEL_KEY: NANO, MASTERS_KEY: trained}
    return {**file.storage.file_metadata(shapes), **whose, **_config(file.component)}


def _config(component: Component) -> dict[str, str]:
    """What only files of this component tell."""
    if component == "text_encoder":
        return {CONFIG_KEY: json.dumps(TOLD)}
    return {FRAMES_KEY: told_frames(TRAINED_FRAMES)} if component == "transformer" else {}

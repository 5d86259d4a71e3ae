"""Values of a made-up video VAE.

Fed with a seed and a depth by `made_files`.
"""

from __future__ import annotations

import math

import torch

from h3runtime.checkpoint.synthetic.constants import VIDEO_LATENTS_MEAN, VIDEO_LATENTS_STD
from h3runtime.checkpoint.synthetic.random_values import uniform
from h3runtime.checkpoint.synthetic.recipes.recipe import BIAS, NORM, Recipe, Spread, cycled

DEPTH = 2
"""Decoder layers that the scales are meant for; among more, each adds less, so that the sum stays the same."""


def video_vae(seed: int = 0, layers: int = DEPTH) -> Recipe:
    """The encoder's moments land on the published statistics; the decoder takes them off again."""
    share = math.sqrt(DEPTH / layers)
    return Recipe(
        seed,
        rules=(
            ("decoder.*.bias", Spread(std=0.01)),
            ("*.bias", BIAS),
            ("*.norm*.weight", NORM),
            ("*.scale1", Spread(std=0.1, mean=1.2).scaled(share)),
            ("*.scale2", Spread(std=0.1, mean=0.3).scaled(share)),
            ("decoder.register_tokens", Spread(std=0.05)),
            ("encoder.*.weight", Spread(gain=1.6)),
            ("decoder.x_embedder.weight", Spread(gain=0.3)),
            ("*.weight", Spread(gain=1.0)),
        ),
        makers=(
            ("latents_mean", lambda _r, _n, shape: cycled(VIDEO_LATENTS_MEAN, shape[0])),
            ("latents_std", lambda _r, _n, shape: cycled(VIDEO_LATENTS_STD, shape[0])),
            ("decoder.mask_token", lambda _r, _n, shape: torch.zeros(shape)),
            ("quant_conv.weight", _to_statistics),
            ("quant_conv.bias", _to_mean),
            ("post_quant_conv.weight", _from_statistics),
            ("post_quant_conv.bias", _from_mean),
            ("decoder.*.attn.to_qkv.bias", _look_nearby),
            ("decoder.proj_out.weight", _textures),
        ),
    )


def _to_statistics(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """Diagonal: the mean half scaled to the published std, the unused log-variance half as it comes."""
    std = cycled(VIDEO_LATENTS_STD, shape[0] // 2)
    return torch.diag(torch.cat([std, torch.ones_like(std)])).reshape(shape)


def _to_mean(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    mean = cycled(VIDEO_LATENTS_MEAN, shape[0] // 2)
    return torch.cat([mean, torch.full_like(mean, -6.0)])


def _from_statistics(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    return torch.diag(1.0 / cycled(VIDEO_LATENTS_STD, shape[0])).reshape(shape)


def _from_mean(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    return -cycled(VIDEO_LATENTS_MEAN, shape[0]) / cycled(VIDEO_LATENTS_STD, shape[0])


NEARNESS = 6.0
"""Constant part of queries and keys, against a spread of 1 from their contents."""
DECODER_HEAD, ROTARY_AXIS, SHARP = 64, 8, 3
"""Width of a decoder head, its frequencies per axis, and how many of them, the highest, judge nearness (§4.1)."""


def _look_nearby(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Queries and keys share a constant that the rotary table turns by position, so tokens attend to their neighbours.

    This makes of independent latents a picture that changes smoothly in space and time. Rows are heads x (q, k, v) x
    head width; pair (i, i + 24) of a head turns by frequency i % 8 of axis i // 8 (conditioning contract §4.1).
    """
    bias = recipe.random(name, shape)
    if shape[0] % (3 * DECODER_HEAD):
        return bias
    heads = bias.reshape(-1, 3, DECODER_HEAD)
    for axis in range(3):
        for half in (0, 3 * ROTARY_AXIS):
            start = half + axis * ROTARY_AXIS
            heads[:, :2, start : start + SHARP] += NEARNESS
    return bias


COLOUR, TEXTURE, GRAIN = 0.9, 0.3, 0.03
"""Spread of a patch's mean colour, of its smooth texture and of its single pixels, in ImageNet-normalised units."""


def _textures(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Each input paints a colour, a smooth texture and a little grain into the 4 frames x 16 x 16 pixels of a patch."""
    outputs, width = shape
    root = math.sqrt(width)
    colour = uniform(f"{name}#colour", (width, 3, 1, 1, 1), recipe.seed, COLOUR / root)
    knots = uniform(f"{name}#knots", (width, 3, 2, 3, 3), recipe.seed, 1.5 * TEXTURE / root)
    grain = uniform(f"{name}#grain", (width, 3, 4, 16, 16), recipe.seed, GRAIN / root)
    smooth = _stretch(_stretch(_stretch(knots, 2, 4), 3, 16), 4, 16)
    return (colour + smooth + grain).reshape(width, outputs).T.contiguous()


def _stretch(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Linear interpolation of the knots along `axis` to `size` points, ends included."""
    knots = x.shape[axis]
    at = torch.arange(size, dtype=torch.float64) * (knots - 1) / (size - 1)
    low = at.floor().clamp(max=knots - 2).long()
    weight = (at - low).float().reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    start, stop = x.index_select(axis, low), x.index_select(axis, low + 1)
    return start + weight * (stop - start)

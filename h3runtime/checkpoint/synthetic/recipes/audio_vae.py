"""Values of a made-up audio VAE."""

from __future__ import annotations

import math
from functools import partial

import torch

from h3runtime.checkpoint.synthetic.constants import AUDIO_LATENTS_MEAN, AUDIO_LATENTS_STD, AUDIO_TAPS
from h3runtime.checkpoint.synthetic.random_values import uniform
from h3runtime.checkpoint.synthetic.recipes.recipe import NORM, Recipe, Spread, cycled

LOUDNESS = 0.12
"""Root mean square that the sound shall have."""
STREAM, FULL_STREAM = 2.3, 8.2
"""That of what enters the last filter, in small models and in one of the published sizes (measured)."""


def audio_vae(seed: int = 0, stream: float = STREAM) -> Recipe:
    """DAC-style encoder and BigVGAN decoder with folded weight norm."""
    return Recipe(
        seed,
        rules=(
            ("encoder.*.alpha", Spread(std=0.2, mean=1.0)),
            ("decoder.*.alpha", Spread(std=0.2)),
            ("decoder.*.beta", Spread(std=0.2)),
            ("*.bias", Spread(std=0.05)),
            ("pre_block.attn.?_bias", Spread(std=0.05)),
            ("*.norm?.weight", NORM),
            ("*.norm.weight", NORM),
            ("decoder.conv_pre.weight", Spread(gain=1.0)),
            ("decoder.ups.*.weight", Spread(gain=1.5)),
            ("decoder.resblocks.*.weight", Spread(gain=0.6)),
            ("encoder.*.block.?.block.*.weight", Spread(gain=0.5)),
            ("*.weight", Spread(gain=1.0)),
        ),
        makers=(
            ("latents_mean", lambda _r, _n, shape: cycled(AUDIO_LATENTS_MEAN, shape[0])),
            ("latents_std", lambda _r, _n, shape: cycled(AUDIO_LATENTS_STD, shape[0])),
            ("*.filter", _low_pass),
            ("pre_block.attn.zero_k_bias", lambda _r, _n, shape: torch.zeros(shape)),
            ("decoder.conv_post.weight", partial(_last_filter, stream)),
        ),
    )


def _low_pass(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """The published Kaiser-sinc taps (conditioning contract §5.3); other lengths get a mean filter."""
    taps = shape[-1]
    if taps != 2 * len(AUDIO_TAPS):
        return torch.full(shape, 1.0 / taps)
    return torch.tensor([*AUDIO_TAPS, *reversed(AUDIO_TAPS)]).reshape(shape)


def _last_filter(stream: float, recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Odd in time, so that the constant part that Snake activations add never reaches the sound."""
    random = uniform(name, shape, recipe.seed, LOUDNESS / stream / math.sqrt(math.prod(shape)))
    return (random - random.flip(-1)) * 0.5

"""Values of a made-up text encoder: language layers, vision tower and the AWQ scales of its quantised form."""

from __future__ import annotations

from h3runtime.checkpoint.synthetic.random_values import uniform
from h3runtime.checkpoint.synthetic.recipes.recipe import BIAS, NORM, Recipe, Shapes, Spread, Weights

PRE_QUANT = Spread(std=0.25, mean=1.0)


def text_encoder(seed: int = 0) -> Recipe:
    """The cut Qwen3-VL: language layers and vision tower."""
    return Recipe(
        seed,
        rules=(
            ("*.bias", BIAS),
            ("*norm*", NORM),
            ("model.embed_tokens.weight", Spread(std=1.0)),
            ("visual.pos_embed.weight", Spread(std=0.3)),
            ("*.weight", Spread(gain=1.0)),
        ),
    )


def pre_quant_scales(layers: Shapes, seed: int = 0) -> Weights:
    """An AWQ scale [K] for each of these layers {name: [N, K]}: positive, about 1."""
    return {
        name: uniform(f"{name}.pre_quant_scale", (shape[1],), seed, PRE_QUANT.std, PRE_QUANT.mean)
        for name, shape in layers.items()
    }

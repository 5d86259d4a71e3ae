"""Made-up weights for any sizes of the four components: every tensor of the published layouts, with values that live.

"Live" means: the text, the pictures and the seed change the result, latents keep a standard deviation near 1, decoded
frames have colour and texture, the sound is audible and neither clipped nor constant. The rules below set each tensor's
spread; where a network needs more than spread (a decoder that undoes the latent statistics, output heads that shrink
noise) a maker writes the tensor. tests/checkpoint/test_embedded.py measures the result.

Fed with sizes by `embedded` and the tests; `storage` packs the weights as files hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from h3runtime.checkpoint.constants import (
    AUDIO_LATENTS_MEAN,
    AUDIO_LATENTS_STD,
    AUDIO_TAPS,
    VIDEO_LATENTS_MEAN,
    VIDEO_LATENTS_STD,
)
from h3runtime.checkpoint.random_values import uniform

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Spread:
    """gain: standard deviation is gain / sqrt(inputs). std: standard deviation itself, about `mean`."""

    gain: float | None = None
    std: float = 0.0
    mean: float = 0.0


Rules = tuple[tuple[str, Spread], ...]
Maker = Callable[["Recipe", str, tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """rules: (pattern, spread), first match wins. makers: (pattern, function) for tensors that aren't just random."""

    seed: int
    rules: Rules
    makers: tuple[tuple[str, Maker], ...] = ()

    def weights(self, shapes: Shapes) -> Weights:
        """fp32 values for every name; the same names, shapes and seed give the same bits anywhere."""
        return {name: self.tensor(name, shape) for name, shape in shapes.items()}

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        maker = next((make for pattern, make in self.makers if fnmatchcase(name, pattern)), None)
        return maker(self, name, shape) if maker else self.spread(name, shape)

    def spread(self, name: str, shape: tuple[int, ...], salt: str = "") -> torch.Tensor:
        spread = next(s for pattern, s in self.rules if fnmatchcase(name, pattern))
        std = spread.std if spread.gain is None else spread.gain / math.sqrt(math.prod(shape[1:]))
        return uniform(name + salt, shape, self.seed, std, spread.mean)


NORM = Spread(std=0.1, mean=1.0)
BIAS = Spread(std=0.1)


# --- transformer -----------------------------------------------------------------------------------------------------

VIDEO_SHRINK, AUDIO_SHRINK = 0.9, 0.9
"""How much of its input a head returns as velocity: the flow then shrinks noise towards what the blocks add."""
GATE, SHIFT, SCALE = Spread(std=0.2, mean=0.7), Spread(std=0.05), Spread(std=0.2)
BLOCK_CHUNKS = (SHIFT, SCALE, GATE, SHIFT, SCALE, GATE)
FINAL_CHUNKS = (SHIFT, SCALE)
"""Modulation about which timesteps vary, in chunk order (dit-contract §4.2, §4.6)."""
TEXT_ROW, TEXT_LOUDNESS = 1, 3.0
"""Text rows' values are made larger: few among many video rows, they'd otherwise hardly be heard."""


def transformer(seed: int = 0) -> Recipe:
    """The DiT, pruned or full AdaLN."""
    return Recipe(
        seed,
        rules=(
            ("*.bias", Spread(std=0.02)),
            ("*norm*", NORM),
            ("blocks.*.attn.out_proj.weight", Spread(gain=4.0)),
            ("*.adaln_proj.linear.weight", Spread(gain=0.3)),
            ("*_out.weight", Spread(gain=0.5)),
            ("*.weight", Spread(gain=1.0)),
        ),
        makers=(
            ("rope.inv_freq", _inverse_frequencies),
            ("adaln_t_table", _chebyshev_table),
            ("blocks.*.adaln_proj.linear.bias", _block_modulation),
            ("final_layer.adaln_proj.linear.bias", _final_modulation),
            ("final_layer.video_out.weight", _video_head),
            ("final_layer.audio_out.weight", _audio_head),
        ),
    )


def _inverse_frequencies(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """1 / 10000^(i/n) with the power rounded to fp32 first, as the published bits are (dit-contract §1.2)."""
    return 1.0 / torch.tensor([10_000.0 ** (i / shape[0]) for i in range(shape[0])], dtype=torch.float32)


def _chebyshev_table(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """Column k is the Chebyshev polynomial of degree k + 1 over t in [0, 1]: smooth, bounded by 1, all different."""
    grid, rank = shape
    t = 2.0 * torch.arange(grid, dtype=torch.float64) / (grid - 1) - 1.0
    columns = [torch.ones_like(t), t]
    while len(columns) <= rank:
        columns.append(2.0 * t * columns[-1] - columns[-2])
    return torch.stack(columns[1 : rank + 1], dim=1).float()


def _block_modulation(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """[3 modalities, 6 chunks, hidden]; the text's first scale is raised by TEXT_LOUDNESS."""
    width = shape[0] // (3 * len(BLOCK_CHUNKS))
    chunks = _chunks(recipe, name, 3, BLOCK_CHUNKS, width)
    chunks[TEXT_ROW, 1] += TEXT_LOUDNESS
    return chunks.reshape(shape)


def _final_modulation(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return _chunks(recipe, name, 1, FINAL_CHUNKS, shape[0] // len(FINAL_CHUNKS)).reshape(shape)


def _chunks(recipe: Recipe, name: str, rows: int, chunks: tuple[Spread, ...], width: int) -> torch.Tensor:
    made = [uniform(f"{name}#{i}", (rows, width), recipe.seed, c.std, c.mean) for i, c in enumerate(chunks)]
    return torch.stack(made, dim=1)


def _video_head(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return _head(recipe, name, shape, "video_patch_proj.weight", VIDEO_SHRINK)


def _audio_head(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return _head(recipe, name, shape, "audio_patch_proj.weight", AUDIO_SHRINK)


def _head(recipe: Recipe, name: str, shape: tuple[int, ...], projection: str, shrink: float) -> torch.Tensor:
    """Random, minus `shrink` times the projection undone: its columns are nearly orthogonal, so its transpose does it.

    The sign is the network's own: ComfyUI turns it round (dit-contract §4.6).
    """
    rows, hidden = shape
    undo = recipe.tensor(projection, (hidden, rows)).T * (rows / hidden)
    return recipe.spread(name, shape) - shrink * undo


# --- text encoder ----------------------------------------------------------------------------------------------------


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


def pre_quant_scales(shapes: Shapes, patterns: tuple[str, ...], seed: int = 0) -> Weights:
    """AWQ scales by layer, for layers that match one of `patterns`: positive, about 1."""
    layers = {n.removesuffix(".weight"): s for n, s in shapes.items() if n.endswith(".weight") and len(s) == 2}
    return {
        layer: uniform(f"{layer}.pre_quant_scale", (shape[1],), seed, std=0.25, mean=1.0)
        for layer, shape in layers.items()
        if any(fnmatchcase(layer, p) for p in patterns)
    }


# --- video VAE -------------------------------------------------------------------------------------------------------


def video_vae(seed: int = 0) -> Recipe:
    """The encoder's moments land on the published statistics; the decoder takes them off again."""
    return Recipe(
        seed,
        rules=(
            ("decoder.*.bias", Spread(std=0.01)),
            ("*.bias", BIAS),
            ("*.norm*.weight", NORM),
            ("*.scale1", Spread(std=0.1, mean=1.2)),
            ("*.scale2", Spread(std=0.1, mean=0.3)),
            ("decoder.register_tokens", Spread(std=0.05)),
            ("encoder.*.weight", Spread(gain=1.6)),
            ("decoder.x_embedder.weight", Spread(gain=0.3)),
            ("*.weight", Spread(gain=1.0)),
        ),
        makers=(
            ("latents_mean", lambda _r, _n, shape: _cycled(VIDEO_LATENTS_MEAN, shape[0])),
            ("latents_std", lambda _r, _n, shape: _cycled(VIDEO_LATENTS_STD, shape[0])),
            ("decoder.mask_token", lambda _r, _n, shape: torch.zeros(shape)),
            ("quant_conv.weight", _to_statistics),
            ("quant_conv.bias", _to_mean),
            ("post_quant_conv.weight", _from_statistics),
            ("post_quant_conv.bias", _from_mean),
            ("decoder.*.attn.to_qkv.bias", _look_nearby),
            ("decoder.proj_out.weight", _textures),
        ),
    )


def _cycled(values: tuple[float, ...], count: int) -> torch.Tensor:
    return torch.tensor([values[i % len(values)] for i in range(count)])


def _to_statistics(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """Diagonal: the mean half scaled to the published std, the unused log-variance half as it comes."""
    std = _cycled(VIDEO_LATENTS_STD, shape[0] // 2)
    return torch.diag(torch.cat([std, torch.ones_like(std)])).reshape(shape)


def _to_mean(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    mean = _cycled(VIDEO_LATENTS_MEAN, shape[0] // 2)
    return torch.cat([mean, torch.full_like(mean, -6.0)])


def _from_statistics(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    return torch.diag(1.0 / _cycled(VIDEO_LATENTS_STD, shape[0])).reshape(shape)


def _from_mean(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    return -_cycled(VIDEO_LATENTS_MEAN, shape[0]) / _cycled(VIDEO_LATENTS_STD, shape[0])


NEARNESS = 6.0
"""Constant part of queries and keys, against a spread of 1 from their contents."""
DECODER_HEAD, ROTARY_AXIS, SHARP = 64, 8, 3
"""Width of a decoder head, its frequencies per axis, and how many of them, the highest, judge nearness (§4.1)."""


def _look_nearby(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Queries and keys share a constant that the rotary table turns by position, so tokens attend to their neighbours.

    This makes of independent latents a picture that changes smoothly in space and time. Rows are heads x (q, k, v) x
    head width; pair (i, i + 24) of a head turns by frequency i % 8 of axis i // 8 (conditioning contract §4.1).
    """
    bias = recipe.spread(name, shape)
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


# --- audio VAE -------------------------------------------------------------------------------------------------------


def audio_vae(seed: int = 0) -> Recipe:
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
            ("latents_mean", lambda _r, _n, shape: _cycled(AUDIO_LATENTS_MEAN, shape[0])),
            ("latents_std", lambda _r, _n, shape: _cycled(AUDIO_LATENTS_STD, shape[0])),
            ("*.filter", _low_pass),
            ("pre_block.attn.zero_k_bias", lambda _r, _n, shape: torch.zeros(shape)),
            ("decoder.conv_post.weight", _last_filter),
        ),
    )


def _low_pass(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG001
    """The published Kaiser-sinc taps (conditioning contract §5.3); other lengths get a mean filter."""
    taps = shape[-1]
    if taps != 2 * len(AUDIO_TAPS):
        return torch.full(shape, 1.0 / taps)
    return torch.tensor([*AUDIO_TAPS, *reversed(AUDIO_TAPS)]).reshape(shape)


LOUDNESS, STREAM = 0.12, 2.3
"""Root mean square that the sound shall have, and that of what enters the last filter (measured)."""


def _last_filter(recipe: Recipe, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Odd in time, so that the constant part that Snake activations add never reaches the sound."""
    random = uniform(name, shape, recipe.seed, LOUDNESS / STREAM / math.sqrt(math.prod(shape)))
    return (random - random.flip(-1)) * 0.5

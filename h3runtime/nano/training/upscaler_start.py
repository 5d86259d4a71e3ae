"""First values of the latent upscaler: a plain resize, which training then improves on.

Two norms and a SiLU stand between the input and the output even where all blocks add nothing. Both are held almost
linear: in every group of the last norm some channels are constants (`ANCHOR` and minus it, by turns), which make up
nearly all of its deviation, less what the others have in common, so that its mean is zero; and the SiLU is entered at
`BIAS`, where it is almost straight.
Fed by `upscaler` only.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import nn

from h3runtime.vae.upscaler import LatentUpscaler

ANCHOR: Final = 8.0
SPREAD: Final = 0.3
"""Of the latents after the last norm."""
BIAS: Final = 4.0


@torch.no_grad()
def initialise(model: LatentUpscaler, seed: int) -> None:
    """Every parameter of a model on the CPU. It must have two channels or more to a group that no latent needs."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        value.copy_(_plain_value(name, value, generator))
    config = model.config
    size = config.channels // config.groups
    each = -(-config.latent_channels // config.groups)
    spare = size - each
    assert spare >= 2, (size, each)
    places = [group * size + index for group in range(config.groups) for index in range(each)]
    used = torch.tensor(places[: config.latent_channels])
    anchored = torch.ones(config.channels, dtype=torch.bool).index_fill(0, used, False)
    deviation = ANCHOR * (spare / size) ** 0.5
    _centre(model.conv_in, used, torch.arange(len(used)), 1.0)
    same_group = torch.arange(config.channels).unsqueeze(1) // size == used.unsqueeze(0) // size
    model.conv_in.weight[anchored, :, 1, 1, 1] = -same_group[anchored].float() / spare
    signs = torch.where(torch.arange(config.channels) % 2 == 0, 1.0, -1.0)
    assert model.conv_in.bias is not None
    assert model.conv_out.bias is not None
    model.conv_in.bias.copy_(ANCHOR * signs * anchored)
    model.norm_out.weight.fill_(SPREAD * deviation)
    model.norm_out.bias.fill_(BIAS)
    silu, slope = _silu_at(BIAS)
    _centre(model.conv_out, torch.arange(len(used)), used, 1 / (SPREAD * slope))
    model.conv_out.bias.fill_(-silu / (SPREAD * slope))


def _plain_value(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    silent = ("out_layers.2.weight", "pwconv.weight", "conv_in.weight", "conv_out.weight")
    if value.ndim == 1 and name.endswith("weight"):
        return torch.ones(value.shape)
    if value.ndim == 1 or name.endswith(silent):
        return torch.zeros(value.shape)
    return torch.randn(value.shape, generator=generator) / math.sqrt(value[0].numel())


def _centre(conv: nn.Conv3d, outputs: torch.Tensor, inputs: torch.Tensor, gain: float) -> None:
    """output i is `gain` times input i, at the same place."""
    conv.weight[outputs, inputs, 1, 1, 1] = gain


def _silu_at(x: float) -> tuple[float, float]:
    """Value and slope."""
    gate = float(torch.sigmoid(torch.tensor(x, dtype=torch.float64)))
    return x * gate, gate * (1 + x * (1 - gate))

"""First values of a video VAE's parameters, made so that it learns to reconstruct from the first step on.

The encoder's residual branches start small, so it begins as a chain of strided convolutions; the decoder begins by
saying the mean picture. Fed by `video_vae`.

The last norm takes away what three neighbouring channels have in common and scales them by their spread, so a plain
colour would hardly get through. The channels before it therefore stand at +ANCHOR, -ANCHOR and 0: the spread is almost
constant then and the norm almost linear.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from h3runtime.vae.video_config import GROUPS
from h3runtime.vae.video_decoder import VideoDecoder
from h3runtime.vae.video_encoder import CausalConv3d, ResidualBlock, VideoEncoder
from h3runtime.vae.video_vae import VideoVae

ANCHOR = 2.0
BRANCH = 0.2
"""Of a residual branch's last layer, against the usual scale."""
EARLIER = 0.4
"""Of the two earlier taps in time, against the frame's own."""
LAYER_SCALE = 0.5
LOGVAR = -8.0
"""The log-variance nobody reads."""


@torch.no_grad()
def initialise(vae: VideoVae, seed: int) -> None:
    """Every parameter and both statistics; reproducible, whatever the device (drawn on the CPU)."""
    generator = torch.Generator().manual_seed(seed)
    assert vae.encoder is not None and vae.decoder is not None
    assert vae.quant_conv is not None and vae.post_quant_conv is not None
    _encoder(vae.encoder, generator)
    _decoder(vae.decoder, generator)
    for conv in (vae.quant_conv, vae.post_quant_conv):
        nn.init.eye_(conv.weight.flatten(1))
        nn.init.zeros_(conv.bias)
    channels = vae.config.latent_channels
    vae.quant_conv.weight[channels:] = 0
    vae.quant_conv.bias[channels:] = LOGVAR
    vae.latents_mean.zero_()
    vae.latents_std.fill_(1)


def _encoder(encoder: VideoEncoder, generator: torch.Generator) -> None:
    for module in encoder.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv3d):
            _convolution(module, generator)
    blocks = [block for block in encoder.modules() if isinstance(block, ResidualBlock)]
    for block in blocks:
        block.conv2.weight *= BRANCH
    blocks[0].conv2.weight.zero_()
    bias = blocks[-1].conv2.bias
    assert bias is not None
    pattern = torch.tensor([1.0, -1.0, 0.0]) if len(bias) // GROUPS == 3 else torch.tensor([1.0, -1.0])
    bias.copy_(ANCHOR * pattern.repeat(len(bias))[: len(bias)])


def _convolution(conv: nn.Conv3d, generator: torch.Generator) -> None:
    own = conv.weight[0, :, -1].numel()
    _normal(conv.weight, 1 / math.sqrt(own), generator)
    if isinstance(conv, CausalConv3d):
        conv.weight[:, :, :-1] *= EARLIER
    assert conv.bias is not None
    conv.bias.zero_()


def _decoder(decoder: VideoDecoder, generator: torch.Generator) -> None:
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 2:
            _normal(parameter, 1 / math.sqrt(parameter.shape[1]), generator)
        elif "norm" in name and name.endswith("weight"):
            parameter.fill_(1)
        else:
            parameter.fill_(LAYER_SCALE if name.endswith(("scale1", "scale2")) else 0)
    _normal(decoder.register_tokens, 0.5, generator)
    decoder.proj_out.weight *= 0.3


def _normal(parameter: torch.Tensor, std: float, generator: torch.Generator) -> None:
    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

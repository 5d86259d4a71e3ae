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

from h3runtime.nano.training.video_basis import Basis
from h3runtime.vae.video_config import GROUPS
from h3runtime.vae.video_decoder import Block, VideoDecoder
from h3runtime.vae.video_encoder import CausalConv3d, ResidualBlock, VideoEncoder
from h3runtime.vae.video_vae import VideoVae

ANCHOR = 2.0
BRANCH = 0.2
"""Of a residual branch's last layer, against the usual scale."""
EARLIER = 0.4
"""Of the two earlier taps in time, against the frame's own."""
LAYER_SCALE = 0.5
SOLID = 30.0
"""Of the decoder's two constant features: the squares of both are 1800, of a patch's coefficients some 24."""
QUIET = 0.05
"""Of the decoder's residual branches at first."""
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
        assert conv.bias is not None
        conv.bias.zero_()
    channels = vae.config.latent_channels
    assert vae.quant_conv.bias is not None
    vae.quant_conv.weight[channels:] = 0
    vae.quant_conv.bias[channels:] = LOGVAR
    for statistic, value in (("latents_mean", 0.0), ("latents_std", 1.0)):
        vae.get_buffer(statistic).fill_(value)


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


@torch.no_grad()
def decode_basis(decoder: VideoDecoder, basis: Basis) -> None:
    """Make the decoder say what a whitened code of `basis` means: a linear code, to which the blocks add nothing yet.

    Feature k is component k over its deviation, so that all are worth learning alike; those beyond the latents are
    zeros, for the blocks to fill. The last two features are constant and large: the norms divide by little else.
    """
    width = len(decoder.x_embedder.weight)
    spread = SOLID * math.sqrt(2 / width)
    used = torch.arange(width, device=basis.mean.device) < width - 2
    nn.init.zeros_(decoder.x_embedder.bias)
    decoder.x_embedder.bias[-2], decoder.x_embedder.bias[-1] = SOLID, -SOLID
    nn.init.eye_(decoder.x_embedder.weight)
    gain = torch.where(used, spread, 1 / SOLID)
    for block in decoder.transformer_blocks:
        assert isinstance(block, Block)
        for norm, last in ((block.norm1, block.attn.to_out), (block.norm2, block.ff.w2)):
            norm.weight.copy_(gain)
            last.weight *= QUIET
    decoder.register_tokens[..., -2], decoder.register_tokens[..., -1] = SOLID, -SOLID
    decoder.norm_out.weight.copy_(gain)
    decoder.proj_out.weight.copy_(basis.components[:, :width] * basis.spread[:width] * used)
    decoder.proj_out.bias.copy_(basis.mean)


def _normal(parameter: torch.Tensor, std: float, generator: torch.Generator) -> None:
    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

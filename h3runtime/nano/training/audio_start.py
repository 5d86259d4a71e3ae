"""First values of the audio VAE's parameters: a linear code of the world's sounds, written into the convolutions.

A deep stack of random filters that has to carry a waveform through 32 numbers learns to be silent first, and stays so
for long. But 800 samples of the world's sounds lie within 30 dB in the space of their first 32 principal components,
and both halves have a path that is linear, or almost: the skips of the residual blocks and the resampling convolutions.
So that path is set to the code and its inverse, all else adds nothing at first, and training begins with sound:

    waveform <-> phases: 2, 8, 32 samples side by side as channels <-> 64 channels for 160 samples <-> 32 components

Channels beyond those used are read with random weights but written with none, and residual branches end in zeros: they
don't disturb, and have gradients. Snake stands on the path in a few places, with a frequency so low that it is linear;
the encoder's last norms are held almost linear by constants (`anchor`) in the channels that the code doesn't use.
Fed by `audio_vae` only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from torch import nn

from h3runtime.core import SAMPLES_PER_LATENT
from h3runtime.vae.audio_decoder import AudioDecoder
from h3runtime.vae.audio_encoder import AudioEncoder, AudioProjection, Snake
from h3runtime.vae.audio_filters import kaiser_sinc_taps
from h3runtime.vae.audio_vae import AudioVae

Part = TypeVar("Part", bound=nn.Module)
Conv = TypeVar("Conv", nn.Conv1d, nn.ConvTranspose1d)
AT_ONCE: Final = 16384
LEAST: Final = 0.15
"""Least deviation of a component that is scaled to 1; the norm of 800 samples of a tone is about 5."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """anchor: the constants, against components of `spread` standard deviation. frequency: of Snake on the path.

    divisor: logarithm of SnakeBeta's divisor on the path. reading: random weights of unused channels, times
    1 / sqrt(fan-in).
    """

    anchor: float = 4.0
    spread: float = 0.5
    frequency: float = 0.005
    divisor: float = 4.0
    reading: float = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class LinearCode:
    """analysis [C, 800] makes the components of 800 samples, unit variance each; synthesis [C, 800] is its inverse."""

    analysis: torch.Tensor
    synthesis: torch.Tensor


@torch.no_grad()
def linear_code(waves: torch.Tensor, channels: int) -> LinearCode:
    """Principal components of sounds [..., 800], fp32 on the CPU. Silence is zero.

    Summed in double precision: the last components have a thousandth of the first one's variance.
    """
    blocks = waves.reshape(-1, SAMPLES_PER_LATENT)
    moments = torch.zeros(SAMPLES_PER_LATENT, SAMPLES_PER_LATENT, dtype=torch.float64, device=waves.device)
    for part in torch.split(blocks, AT_ONCE):
        moments += part.double().T @ part.double()
    variances, axes = torch.linalg.eigh(moments.cpu() / len(blocks))
    axes = axes.flip(1)[:, :channels].T
    deviations = variances.flip(0)[:channels].sqrt().clamp_min(LEAST).unsqueeze(1)
    return LinearCode((axes / deviations).float(), (axes * deviations).float())


@torch.no_grad()
def initialise(vae: AudioVae, code: LinearCode, begin: Beginning, seed: int) -> None:
    """Every parameter and buffer of a VAE on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in (*vae.named_parameters(), *vae.named_buffers()):
        value.copy_(_plain_value(name, value, generator))
    for name, module in vae.named_modules():
        if name.endswith(("convs2.0", "convs2.1", "convs2.2", "block.3", "mlp.w2", "attn.proj")):
            for value in module.parameters(recurse=False):
                _ = value.zero_() if isinstance(module, nn.Conv1d | nn.Linear) else None
    _encoder(vae.encoder, code.analysis * begin.spread, begin, generator)
    _projection(vae.pre_block, len(code.analysis), begin)
    vae.mean_proj.weight.copy_(torch.eye(len(code.analysis)).unsqueeze(-1))
    _decoder(vae, code.synthesis, begin, generator)


def _plain_value(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    last = name.rsplit(".", 1)[-1]
    if last == "filter":
        return kaiser_sinc_taps(value.shape[-1])
    if last == "latents_std" or (last == "alpha" and value.ndim == 3) or (last == "weight" and value.ndim == 1):
        return torch.ones(value.shape)
    if value.ndim == 1:
        return torch.zeros(value.shape)
    return torch.randn(value.shape, generator=generator) / math.sqrt(value[0].numel())


def _encoder(encoder: AudioEncoder, analysis: torch.Tensor, begin: Beginning, generator: torch.Generator) -> None:
    stem, *stages, snake, out = encoder.block
    assert isinstance(stem, nn.Conv1d) and isinstance(out, nn.Conv1d)
    downs = [_part(stage, "block.4", nn.Conv1d) for stage in stages]
    _quiet(stem, 1, begin, generator).weight[0, 0, stem.kernel_size[0] // 2] = 1
    phases = 1
    for conv in downs[:-2]:
        _gather(_quiet(conv, phases, begin, generator), phases)
        phases *= conv.stride[0]
    inner, outer = downs[-2:]
    first, second = factors(analysis, outer.stride[0], min(outer.in_channels, analysis.shape[1] // outer.stride[0]))
    rank = len(second)
    for conv, used, parts in ((inner, phases, second), (outer, rank, first)):
        _quiet(conv, used, begin, generator)
        taps = torch.unflatten(parts, 1, (conv.stride[0], used)).transpose(1, 2)
        conv.weight[: len(parts), :used, _taps(conv)] = taps
    for trunk in (*(_part(stage, "block.3", Snake) for stage in stages), _part(snake, "", Snake)):
        trunk.alpha.fill_(begin.frequency)
    components = len(analysis)
    _quiet(out, components, begin, generator).weight[:components, :components, 1] = torch.eye(components)
    assert out.bias is not None
    out.bias[components::2], out.bias[components + 1 :: 2] = begin.anchor, -begin.anchor


def _projection(block: AudioProjection, components: int, begin: Beginning) -> None:
    """`proj` undoes what the norm divides by: the deviation of the anchors among all channels."""
    width = block.proj.in_features
    deviation = begin.anchor * (1 - components / width) ** 0.5
    block.proj.weight.zero_()
    block.proj.weight[:, :components] = torch.eye(components) * (deviation / begin.spread)


def _decoder(vae: AudioVae, synthesis: torch.Tensor, begin: Beginning, generator: torch.Generator) -> None:
    decoder: AudioDecoder = vae.decoder
    components = len(synthesis)
    widened = _quiet(vae.dec_in_proj, components, begin, generator)
    widened.weight[:components, :, 0] = torch.eye(components)
    pre = _quiet(decoder.conv_pre, components, begin, generator)
    pre.weight[:components, :components, pre.kernel_size[0] // 2] = torch.eye(components)
    ups = [_part(up, "0", nn.ConvTranspose1d) for up in decoder.ups]
    outer, inner, *rest = ups
    first, second = factors(synthesis, outer.stride[0], min(outer.out_channels, synthesis.shape[1] // outer.stride[0]))
    used, phases = len(second), second.shape[1] // inner.stride[0]
    _quiet(outer, components, begin, generator)
    outer.weight[:components, :used, _taps(outer)] = torch.unflatten(first, 1, (-1, used)).transpose(1, 2)
    _quiet(inner, used, begin, generator)
    inner.weight[:used, :phases, _taps(inner)] = torch.unflatten(second, 1, (-1, phases)).transpose(1, 2)
    for up in rest:
        _quiet(up, phases, begin, generator)
        phases //= up.stride[0]
        _scatter(up, phases)
    post = _quiet(decoder.conv_post, 1, begin, generator)
    post.weight[0, 0, post.kernel_size[0] // 2] = 1
    decoder.activation_post.act.beta.fill_(begin.divisor)


def factors(code: torch.Tensor, parts: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """code [C, parts n] -> [C, parts rank] and [rank, n]: the best code of that many channels between two stages.

    Each of the `parts` pieces of a row of `code` is a sum of rows of the second, weighted by a piece of the first.
    """
    components = len(code)
    u, s, v = torch.linalg.svd(code.reshape(components * parts, -1), full_matrices=False)
    even = s[0].sqrt()
    return (u[:, :rank] * (s[:rank] / even)).reshape(components, parts * rank), v[:rank] * even


def _part(module: nn.Module, name: str, kind: type[Part]) -> Part:
    """The module of that name below it, which is of that kind."""
    found = module.get_submodule(name)
    assert isinstance(found, kind)
    return found


def _quiet(conv: Conv, used: int, begin: Beginning, generator: torch.Generator) -> Conv:
    """No weights from the channels that are used; small ones by lot from those that aren't; no bias."""
    shape, across = conv.weight.shape, isinstance(conv, nn.ConvTranspose1d)
    fan = shape[0] * shape[2] / conv.stride[0] if across else shape[1] * shape[2]
    conv.weight.copy_(torch.randn(shape, generator=generator) * (begin.reading / fan**0.5))
    (conv.weight[:used] if across else conv.weight[:, :used]).zero_()
    if conv.bias is not None:
        conv.bias.zero_()
    return conv


def _taps(conv: nn.Conv1d | nn.ConvTranspose1d) -> slice:
    """Where in its kernel a resampling convolution holds the samples of its own cell, first to last."""
    begin = conv.padding[0]
    assert isinstance(begin, int)
    return slice(begin, begin + conv.stride[0])


def _gather(conv: nn.Conv1d, phases: int) -> None:
    """[phases, stride L] -> [stride phases, L]: what was one after the other is side by side."""
    for part in range(conv.stride[0]):
        for phase in range(phases):
            conv.weight[part * phases + phase, phase, _taps(conv).start + part] = 1


def _scatter(conv: nn.ConvTranspose1d, phases: int) -> None:
    """The inverse of `_gather`: [stride phases, L] -> [phases, stride L]."""
    for part in range(conv.stride[0]):
        for phase in range(phases):
            conv.weight[part * phases + phase, phase, _taps(conv).start + part] = 1

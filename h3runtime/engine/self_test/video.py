"""What lies between the products of the video decoder and between the convolutions of the encoder: each step of the
chosen family beside the definition's. The error is that of the worst row of the worst step, relative L2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.backends.cnn import definition as cnn_definition
from h3runtime.backends.cnn.base import CnnSteps, FrameNorm
from h3runtime.backends.cnn.select import steps_named
from h3runtime.backends.vit.base import Activation, VitSteps
from h3runtime.backends.vit.definition import TorchSteps
from h3runtime.engine.self_test.check import Check, worst_row
from h3runtime.vae.video_config import DecoderConfig, EncoderConfig
from h3runtime.vae.video_decoder import EPS, coordinates, rotary_table

FAMILY: Final = "vae_fused"
GRID: Final = (2, 4, 5)
TOLERANCE: Final = 5e-3
"""FP16 rounds to 2^-11; attention of FP16 on a GPU differs by 2e-3 at most from the definition's as a whole
(tests/gpu/vit_checks.py), and rows are a little further apart."""
GROUPS: Final = 32


def video_checks(
    steps: VitSteps,
    decoder: DecoderConfig | None,
    encoder: EncoderConfig | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[Check]:
    """None for the definition itself."""
    if type(steps) is not TorchSteps and decoder is not None:
        asked = f"{GRID[0]}x{GRID[1]}x{GRID[2]} tokens of {decoder.width}"
        yield Check(FAMILY, steps.name, asked, TOLERANCE, lambda: _decoder_error(steps, decoder, dtype, device))
    between = steps_named(steps.name)
    if type(between) is not cnn_definition.TorchSteps and encoder is not None:
        asked = f"{encoder.channels} channels of 3x9x11"
        yield Check(FAMILY, steps.name, asked, TOLERANCE, lambda: _encoder_error(between, encoder, dtype, device))


@dataclass(frozen=True, slots=True)
class Given:
    x: torch.Tensor
    update: torch.Tensor
    scale: torch.Tensor
    weight: torch.Tensor
    qkv: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    halves: torch.Tensor


def _given(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Given:
    source = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=source) * scale).to(device, dtype)

    positions = coordinates(GRID, config.registers, dtype, device)
    rows = 1, positions.shape[0]
    cos, sin = rotary_table(positions, config.head_dim)
    return Given(
        x=random(*rows, config.width, scale=3.0),
        update=random(*rows, config.width),
        scale=random(config.width),
        weight=random(config.width),
        qkv=random(*rows, config.inner // config.head_dim, 3, config.head_dim, scale=2.0),
        cos=cos,
        sin=sin,
        halves=random(*rows, 2 * config.feed_forward, scale=3.0),
    )


STEPS: Final[tuple[Callable[[VitSteps, Given], Activation], ...]] = (
    lambda of, one: of.norm(one.x, one.weight, EPS),
    lambda of, one: of.add_norm(one.x.clone(), one.update.clone(), one.scale, one.weight, EPS)[0],
    lambda of, one: of.add_norm(one.x.clone(), one.update.clone(), one.scale, one.weight, EPS)[1],
    lambda of, one: of.attend(one.qkv.clone(), one.cos, one.sin, EPS),
    lambda of, one: of.gated(one.halves.clone()),
)


def _decoder_error(steps: VitSteps, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> float:
    one, definition = _given(config, dtype, device), TorchSteps()
    return _worst([(step(steps, one), step(definition, one)) for step in STEPS])


def _encoder_error(steps: CnnSteps, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> float:
    """x with a mean that is no zero, with and without what is owed, and everything that is padded."""
    source = torch.Generator().manual_seed(0)
    channels, definition = config.channels, cnn_definition.TorchSteps()
    x = (torch.randn(1, channels, 3, 9, 11, generator=source) * 2 + 3).to(device, dtype)
    weight, bias = torch.randn(2, channels, generator=source).to(device, dtype).unbind()
    norm = FrameNorm(weight, bias, GROUPS, 1e-6)
    owed = torch.randn(channels, generator=source).to(device, dtype)
    pairs = [(steps.joined(x, x + 1, None, owed), definition.joined(x, x + 1, None, owed))]
    for front, before in ((2, 1), (0, 0)):
        got, wanted = (each.padded(x, norm, front, before, owed) for each in (steps, definition))
        pairs.append((got, wanted))
    return _worst(pairs)


def _worst(pairs: Sequence[tuple[Activation, Activation]]) -> float:
    errors = [worst_row(_rows(got), _rows(wanted)) for got, wanted in pairs]
    return float(torch.tensor(errors).max())


def _rows(made: Activation) -> torch.Tensor:
    """[rows, width] of [B, S, W]; of [B, C, T, H, W] a row for each channel."""
    assert isinstance(made, torch.Tensor)
    return made.flatten(0, 1)

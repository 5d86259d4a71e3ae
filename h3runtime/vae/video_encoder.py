"""The encoder half of the video VAE: a causal 3-D CNN from normalised pixels to moments.

One clip of one tile at a time: [B, 3, F, H, W], F = 1..17, H and W multiples of 16 and at least 32, gives
[B, moments, T, H/16, W/16] with T = 1 for a picture, 5 for 17 frames, 2 for 5. Tiles, clips, pixel normalisation and
`quant_conv` are `video_vae`'s; parameter names are ComfyUI's below `encoder.`.

Arithmetic (conditioning contract §4.1):

- Kernels of 3 are padded by reflection in space and by two zero frames in front in time, so a frame never sees later
  ones, and every clip starts from nothing. Halving convolutions reflect at the right and at the bottom only. Of a
  picture, the zeros meet two taps of every kernel and add nothing: it takes the last tap alone, in two dimensions.
- GroupNorm (32 groups, eps 1e-6) takes its statistics from one frame at a time.
- Residual block: GN SiLU conv GN SiLU conv, plus the input (through a 1x1x1 convolution where the channels change).

All of it runs in the dtype of the pixels; weights in another are cast layer by layer, as they are needed. So
`video_vae` can encode in fp32 with fp16 weights, which is what a CPU is good at.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.cnn.base import CnnSteps, FrameNorm
from h3runtime.backends.cnn.definition import DEFINITION, group_norm
from h3runtime.vae.video_config import GROUPS, EncoderConfig, EncoderLevel

NORM_EPS = 1e-6
"""§4.1; 1e-5 moves the result by 4e-5 to 3e-4."""
FRONT_FRAMES = 2
"""Zero frames in front of every kernel of 3, whatever its stride (§4.1)."""


def _weight_and_bias(layer: nn.Conv3d | nn.GroupNorm, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer's, in the dtype of `x`."""
    assert layer.bias is not None
    return layer.weight.to(x.dtype), layer.bias.to(x.dtype)


def _bias(layer: nn.Conv3d, x: torch.Tensor) -> torch.Tensor:
    return _weight_and_bias(layer, x)[1]


class CausalConv3d(nn.Conv3d):
    """A 3x3x3 convolution that sees the past only. Pads right and bottom alone where it halves space."""

    def __init__(self, in_channels: int, out_channels: int, stride: tuple[int, int, int] = (1, 1, 1)) -> None:
        super().__init__(in_channels, out_channels, 3, stride=stride)

    def forward(
        self,
        x: torch.Tensor,
        norm: FrameGroupNorm | None = None,
        steps: CnnSteps = DEFINITION,
        owed: torch.Tensor | None = None,
        *,
        with_bias: bool = True,
    ) -> torch.Tensor:
        """norm: of what is convolved, with SiLU behind it. owed: a bias that x lacks. with_bias: add one's own."""
        front, before = FRONT_FRAMES if x.shape[2] > 1 else 0, 1 if self.stride[1] == 1 else 0
        padded = steps.padded(x, None if norm is None else norm.of(x), front, before, owed)
        weight, own = _weight_and_bias(self, x)
        bias = own if with_bias else None
        if not front:
            return F.conv2d(padded[:, :, 0], weight[:, :, -1], bias, self.stride[1:]).unsqueeze(2)
        return F.conv3d(padded, weight, bias, self.stride)


class PointConv3d(nn.Conv3d):
    """A 1x1x1 convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 1)

    def forward(self, x: torch.Tensor, *, with_bias: bool = True) -> torch.Tensor:
        weight, bias = _weight_and_bias(self, x)
        return F.conv3d(x, weight, bias if with_bias else None)


class FrameGroupNorm(nn.GroupNorm):
    """GroupNorm over [B, C, T, H, W] whose statistics are those of each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__(GROUPS, channels, eps=NORM_EPS)

    def of(self, x: torch.Tensor) -> FrameNorm:
        """For x of any dtype."""
        return FrameNorm(*_weight_and_bias(self, x), self.num_groups, self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return group_norm(x, self.of(x))


class ResidualBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = FrameGroupNorm(in_channels)
        self.conv1 = CausalConv3d(in_channels, out_channels)
        self.norm2 = FrameGroupNorm(out_channels)
        self.conv2 = CausalConv3d(out_channels, out_channels)
        self.nin_shortcut = PointConv3d(in_channels, out_channels) if in_channels != out_channels else None

    def forward(self, x: torch.Tensor, steps: CnnSteps = DEFINITION) -> torch.Tensor:
        here, point = not steps.adds_biases, self.nin_shortcut
        h: torch.Tensor = self.conv1(x, self.norm1, steps, with_bias=here)
        h = self.conv2(h, self.norm2, steps, None if here else _bias(self.conv1, x), with_bias=here)
        shortcut: torch.Tensor = x if point is None else point(x, with_bias=here)
        if here:
            return steps.joined(shortcut, h)
        return steps.joined(shortcut, h, None if point is None else _bias(point, x), _bias(self.conv2, x))


class Downsample(nn.Module):
    def __init__(self, channels: int, stride: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv = CausalConv3d(channels, channels, stride)

    def forward(self, x: torch.Tensor, steps: CnnSteps = DEFINITION) -> torch.Tensor:
        out: torch.Tensor = self.conv(x, None, steps)
        return out


class Level(nn.Module):
    def __init__(self, config: EncoderLevel) -> None:
        super().__init__()
        first = ResidualBlock(config.in_channels, config.out_channels)
        rest = [ResidualBlock(config.out_channels, config.out_channels) for _ in range(config.blocks - 1)]
        self.block = nn.ModuleList([first, *rest])
        self.downsample = None if config.stride is None else Downsample(config.out_channels, config.stride)

    def forward(self, x: torch.Tensor, steps: CnnSteps = DEFINITION) -> torch.Tensor:
        for block in self.block:
            x = block(x, steps)
        return x if self.downsample is None else self.downsample(x, steps)


class VideoEncoder(nn.Module):
    """Normalised pixels [B, 3, F, H, W] -> [B, moments, T, H/16, W/16] in the pixels' dtype."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        last = config.levels[-1].out_channels
        self.conv_in = CausalConv3d(3, config.channels)
        self.down = nn.ModuleList(Level(level) for level in config.levels)
        self.norm_out = FrameGroupNorm(last)
        self.conv_out = CausalConv3d(last, config.moments)
        self.steps: CnnSteps = DEFINITION

    def take_steps(self, steps: CnnSteps) -> None:
        """Let `steps` compute what lies between the convolutions; weights are laid out as they want them."""
        if steps.layout != self.steps.layout:
            self.to(memory_format=steps.layout)  # type: ignore[call-overload]  # of parameters with 4 or 5 axes
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x, None, self.steps)
        for level in self.down:
            x = level(x, self.steps)
        moments: torch.Tensor = self.conv_out(x, self.norm_out, self.steps)
        return moments

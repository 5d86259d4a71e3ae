"""The 12-tap low-pass filter of the audio decoder, and the resampling by two that it is used for.

Does: hold the filter as the buffers that a checkpoint fills, and tell how it was designed (`kaiser_sinc_taps`, with
which stored taps are compared). Does not: prefer the design over the file: what is stored is used (conditioning
contract §5.3). Fed by: `audio_decoder`, the only reader.

Shapes: [B, C, L] in; the upsampler gives [B, C, 2L], the downsampler [B, C, L/2]. With n taps (12) the signal's ends
are repeated far enough for every output to see n real or repeated samples:

    up    n/2 - 1 each side, transposed convolution of stride 2, times 2, crop 2 * (n/2 - 1) + (n - 2) / 2 each side
    down  n/2 - 1 on the left, n/2 on the right, convolution of stride 2
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


def kaiser_sinc_taps(taps: int = 12, cutoff: float = 0.25, half_width: float = 0.3) -> torch.Tensor:
    """Kaiser-windowed sinc low-pass, fp32 [1, 1, taps], sum 1 (design: conditioning contract §5.3).

    `cutoff` and `half_width` (of the transition band) are in cycles per sample of the upsampled signal.
    """
    attenuation = 2.285 * (taps // 2 - 1) * math.pi * 4 * half_width + 7.95
    # Kaiser's own rule for the window's shape above 50 dB, which is the case for 12 taps (51.02 dB).
    assert attenuation > 50, attenuation
    beta = 0.1102 * (attenuation - 8.7)
    window = torch.kaiser_window(taps, periodic=False, beta=beta, dtype=torch.float64)
    time = torch.arange(taps, dtype=torch.float64) - (taps - 1) / 2
    response = 2 * cutoff * window * torch.sinc(2 * cutoff * time)
    return (response / response.sum()).float().reshape(1, 1, taps)


class UpsampleByTwo(nn.Module):
    """[B, C, L] -> [B, C, 2L]. One filter serves all channels."""

    filter: torch.Tensor

    def __init__(self, taps: int) -> None:
        super().__init__()
        self.pad = taps // 2 - 1
        self.crop = 2 * self.pad + (taps - 2) // 2
        self.register_buffer("filter", torch.empty(1, 1, taps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        channels = x.shape[1]
        padded = F.pad(x, (self.pad, self.pad), mode="replicate")
        kernel = self.filter.expand(channels, 1, -1)
        wide = F.conv_transpose1d(padded, kernel, stride=2, groups=channels)
        return 2 * wide[..., self.crop : wide.shape[-1] - self.crop]


class LowPass(nn.Module):
    """The filter of the downsampler, one level deeper because the checkpoint keeps it there."""

    filter: torch.Tensor

    def __init__(self, taps: int) -> None:
        super().__init__()
        self.padding = (taps // 2 - 1, taps // 2)
        self.register_buffer("filter", torch.empty(1, 1, taps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        channels = x.shape[1]
        padded = F.pad(x, self.padding, mode="replicate")
        return F.conv1d(padded, self.filter.expand(channels, 1, -1), stride=2, groups=channels)


class DownsampleByTwo(nn.Module):
    """[B, C, L] -> [B, C, L / 2]."""

    def __init__(self, taps: int) -> None:
        super().__init__()
        self.lowpass = LowPass(taps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lowpass(x)
        return out

"""What the audio VAE is trained on: how far two sounds are apart, as waveforms and as spectra.

Plain functions of [B, 1, samples] float32 tensors, differentiable, without host syncs. Fed by `audio_vae` only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AudioLosses:
    """Weights of the terms, and the windows (samples, a quarter of which is the hop) of the spectra."""

    wave: float = 10.0
    linear: float = 10.0
    log: float = 1.0
    silence: float = 10.0
    windows: tuple[int, ...] = (256, 1024, 2048)
    floor: float = 2e-3
    """Added before the logarithm: what lies 54 dB below a full sine counts as little as it is heard."""
    silent: float = 1e-4
    """|sample| below which a place is silent."""


def magnitudes(x: torch.Tensor, window: int) -> torch.Tensor:
    """[B, 1, samples] -> [B, window / 2 + 1, frames], a sine of amplitude 1 gives 1."""
    taper = torch.hann_window(window, device=x.device)
    spectrum = torch.stft(x[:, 0], window, window // 4, window=taper, return_complex=True)
    power: torch.Tensor = torch.view_as_real(spectrum).square().sum(-1)
    return (power + 1e-9).sqrt() * (4 / window)


def audio_loss(made: torch.Tensor, wanted: torch.Tensor, weights: AudioLosses) -> torch.Tensor:
    """The sum of all terms; a scalar."""
    error = (made - wanted).abs()
    total = weights.wave * error.mean() + weights.silence * (error * (wanted.abs() < weights.silent)).mean()
    for window in weights.windows:
        a, b = magnitudes(made, window), magnitudes(wanted, window)
        share = 1 / len(weights.windows)
        total = total + share * weights.linear * (a - b).abs().mean() * window**0.5
        total = total + share * weights.log * ((a + weights.floor).log() - (b + weights.floor).log()).abs().mean()
    return total


def snr(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """dB of the signal over the error, all items together; a scalar."""
    return 10 * torch.log10(wanted.square().sum() / (made - wanted).square().sum().clamp_min(1e-12))

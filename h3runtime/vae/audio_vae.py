"""The audio VAE as ComfyUI wraps it: stereo waveform at 32 kHz <-> normalised latents (conditioning contract §5).

Does: fit a sound to whole latents, run left and right as two mono items, normalise. Does not: resample (`media` does),
trim to the clip or apply the loudness rule (§6; `media` does), choose a device. fp32 only: weights stored in half
precision are widened once, on first use. The engine pins TF32 off and cuDNN to deterministic kernels; both would show
(TF32 costs about 1e-3, §5.1; the transposed convolutions may otherwise add in any order).

Fed by: `engine` with the sound of references and with the sampler's audio latents. Read by: `engine`.

Memory: both grow with the sound. Measured on a CPU at real size, above the weights: `decode` 0.87 MiB per latent
(0.5 GiB for the longest clip, A = 603), `encode` 1.8 MiB per latent (1.1 GiB for 15 s of stereo). The widest tensors
are 2 * 6400 A floats in the decoder, twice that inside an activation, and 2 * 64 floats per sample in the encoder.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.errors import BadMedia, CheckpointError, Offence
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_decoder import AudioDecoder
from h3runtime.vae.audio_encoder import AudioEncoder, AudioProjection

STEREO = 2


class AudioVae(nn.Module):
    """Parameter names are the keys of the ComfyUI file. Halves that the file lacks are not built."""

    latents_mean: torch.Tensor
    latents_std: torch.Tensor

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.latent_channels
        self.register_buffer("latents_mean", torch.empty(channels))
        self.register_buffer("latents_std", torch.empty(channels))
        if config.encoder is not None:
            self.encoder = AudioEncoder(config.encoder)
            self.pre_block = AudioProjection(config.encoder, channels)
            self.mean_proj = nn.Conv1d(channels, channels, 1)
            # In every file, never used: the posterior is never sampled (conditioning contract §5.2).
            self.logs_proj = nn.Conv1d(channels, channels, 1)
        if config.decoder is not None:
            self.dec_in_proj = nn.Conv1d(channels, config.decoder.latent_dim, 1)
            self.decoder = AudioDecoder(config.decoder)

    @torch.no_grad()
    def encode(self, waveform: torch.Tensor, fit: Literal["crop", "pad"] = "crop") -> torch.Tensor:
        """fp32 [B, ch, samples] at 32 kHz -> normalised latent fp32 [B, C, 2, A], axis 2 = left, right.

        Mono is heard on both sides; channels beyond the second are dropped. `fit` makes whole latents: `crop` keeps the
        centre floor(samples / hop) * hop samples (ComfyUI), `pad` appends zeros up to the next one (release).
        Raises BadMedia for a sound shorter than one latent (`crop`) or without samples or channels, CheckpointError if
        the file had no encoder.
        """
        if self.config.encoder is None:
            raise CheckpointError("this audio VAE has no encoder, so it can't take sound in")
        self._widen()
        stereo = fit_to_latents(as_stereo(waveform), self.config.encoder.hop, fit)
        items = stereo.to(self.latents_mean).reshape(-1, 1, stereo.shape[-1])
        mean = self.posterior_mean(items)
        normalised = (mean - self.latents_mean[:, None]) / self.latents_std[:, None]
        pairs = normalised.reshape(-1, STEREO, *normalised.shape[1:])
        return pairs.transpose(1, 2).contiguous()

    @torch.no_grad()
    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Normalised latent [B, C, 2, A] -> waveform fp32 [B, 2, hop * A] in [-1, 1] at 32 kHz.

        The loudness rule is not applied. Raises CheckpointError if the file had no decoder.
        """
        if self.config.decoder is None:
            raise CheckpointError("this audio VAE has no decoder, so it can't give sound out")
        self._widen()
        items = self.denormalised_items(latent)
        waveform: torch.Tensor = self.decoder(self.dec_in_proj(items))
        return waveform.reshape(-1, STEREO, waveform.shape[-1])

    def posterior_mean(self, items: torch.Tensor) -> torch.Tensor:
        """Mono items [B, 1, hop * A] -> [B, C, A], not normalised."""
        rows = self.pre_block(self.encoder(items).transpose(1, 2))
        mean: torch.Tensor = self.mean_proj(rows.transpose(1, 2))
        return mean

    def denormalised_items(self, latent: torch.Tensor) -> torch.Tensor:
        """[B, C, 2, A] normalised -> mono items [2B, C, A], left before right of each."""
        latent = latent.to(self.latents_mean)
        z = latent * self.latents_std[:, None, None] + self.latents_mean[:, None, None]
        return z.transpose(1, 2).flatten(0, 1)

    def _widen(self) -> None:
        if any(tensor.dtype != torch.float32 for tensor in (*self.parameters(), *self.buffers())):
            self.float()


def as_stereo(waveform: torch.Tensor) -> torch.Tensor:
    """[B, ch, samples] -> [B, 2, samples]: mono doubled, more than two channels cut (conditioning contract §5.2)."""
    if waveform.ndim != 3 or waveform.shape[1] == 0:
        raise _bad_sound(f"has shape {list(waveform.shape)}", "[B, channels, samples] with at least one channel")
    if waveform.shape[1] == 1:
        return waveform.expand(-1, STEREO, -1)
    return waveform[:, :STEREO]


def fit_to_latents(waveform: torch.Tensor, hop: int, fit: Literal["crop", "pad"]) -> torch.Tensor:
    """[..., samples] -> [..., hop * A], cropped around the centre or padded with zeros at the end."""
    samples = waveform.shape[-1]
    if samples == 0 or (fit == "crop" and samples < hop):
        raise _bad_sound(f"has {samples} samples", f"at least {hop}")
    spare = samples % hop
    if fit == "crop":
        return waveform[..., spare // 2 : samples - spare + spare // 2]
    return F.pad(waveform, (0, hop - spare if spare else 0))


def _bad_sound(message: str, legal: str) -> BadMedia:
    return BadMedia(f"the sound {message}; expected {legal}", [Offence("waveform", message, legal)])

"""VAEs of h3-nano with first values: enough for what has to do with shapes and order, not with pictures."""

from __future__ import annotations

import torch

from h3runtime.nano import model
from h3runtime.nano.training.audio_start import Beginning, linear_code
from h3runtime.nano.training.audio_start import initialise as initialise_audio
from h3runtime.nano.training.video_start import initialise as initialise_video
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae


def untrained_video_vae() -> VideoVae:
    vae = model.video_vae()
    initialise_video(vae, 0)
    return vae.eval()


def untrained_audio_vae() -> AudioVae:
    vae = model.audio_vae()
    waves = 0.1 * torch.randn(8, 2, 5, 800, generator=torch.Generator().manual_seed(0))
    initialise_audio(vae, linear_code(waves, model.AUDIO_VAE.channels), Beginning(), 0)
    with torch.no_grad():
        vae.latents_mean.zero_()
        vae.latents_std.fill_(1)
    return vae.eval()

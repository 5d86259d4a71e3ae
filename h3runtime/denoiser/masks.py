"""Masks on the target: what is generated (1), what is kept (0), what is in between.

Does everything about masks outside the network: bringing them to latent size, pooling them to what the network can
tell apart, and the exchange of kept content before and after each network call. Inside the network, where a masked row
reads its own timestep and its velocity is scaled, is the DiT's. Fed by the denoising loop with the masks a request
gives and the content to keep; read by the loop and the DiT (`TokenMasks`).

    m    mask at latent size                 video [1, 1, T, h, w], audio [1, 1, 2, A], fp32
    M    the same, largest value of a token, rounded up to 1/256
    w    clamp((M - m) / max(1 - m, 1e-6), 0, 1), 0 where m = 1
    inj  content to show: video .999 clean + .001 noise; audio as on its own clock, clean
         inj + w (x - inj) inside tokens that are partly generated

    shown to the network:   x m + inj (1 - m)
    estimate made of it:    D m + clean (1 - m)                                       (dit-contract §8)

All of this is in packed, carried fp32 units: clean audio already times s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional as F

from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser.carry import Streams, audio_scale
from h3runtime.denoiser.config import PATCH
from h3runtime.denoiser.schedule import MIN_SIGMA, VISUAL_LEVEL, audio_sigma

LEVELS: Final = 256
"""Token masks are whole multiples of 1/256, which bf16 holds exactly (§8)."""
ALL_GENERATED: Final = 0.999
"""A token mask that is nowhere below is no mask (§8)."""


@dataclass(frozen=True, slots=True)
class Masks:
    """A request's masks, 1 = generate. video [F, 1, H, W] or [1, 1, F, H, W] of any size; audio [1, 1, 2, n] of any
    length; None: all 1. `content` is what is kept, in the streams' own units, shaped as the target."""

    content: Latents
    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """What the network receives: video [1, 1, T, h, w], audio [1, 1, 2, A], constant inside a token; None: all 1."""

    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


def resize_video_mask(mask: torch.Tensor | None, frames: int, height: int, width: int) -> torch.Tensor:
    """A video mask at latent size, fp32 [1, 1, T, h, w]: trilinear, half-pixel centres (§8)."""
    if mask is None:
        return torch.ones(1, 1, frames, height, width)
    clip = mask.float().reshape(1, 1, -1, *mask.shape[-2:])
    return F.interpolate(clip, size=(frames, height, width), mode="trilinear", align_corners=False)


def resize_audio_mask(mask: torch.Tensor | None, latents: int) -> torch.Tensor:
    """An audio mask at latent size, fp32 [1, 1, 2, A]: bilinear over channels and time."""
    if mask is None:
        return torch.ones(1, 1, 2, latents)
    return F.interpolate(mask.float(), size=(2, latents), mode="bilinear", align_corners=False)


def pool_video(mask: torch.Tensor) -> torch.Tensor:
    """M of a latent-size video mask, same shape. Odd sides are completed by repeating their last line."""
    height, width = mask.shape[-2:]
    padded = F.pad(mask[0], (0, width % PATCH, 0, height % PATCH), mode="replicate")
    tokens = F.max_pool2d(padded, PATCH)
    spread = tokens.repeat_interleave(PATCH, -2).repeat_interleave(PATCH, -1)
    return _round_up(spread[None, ..., :height, :width])


def pool_audio(mask: torch.Tensor) -> torch.Tensor:
    """M of a latent-size audio mask: a token is one latent of one channel, so only the rounding is left."""
    return _round_up(mask)


def _round_up(mask: torch.Tensor) -> torch.Tensor:
    return (mask * LEVELS).ceil() / LEVELS


def for_network(pooled: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """A pooled mask in the network's dtype, or None if all of it is generated."""
    return None if float(pooled.min()) >= ALL_GENERATED else pooled.to(dtype)


@dataclass(frozen=True, slots=True)
class Keeper:
    """Puts kept content back around each network call. All tensors are packed fp32 [N] on one device.

    tokens: what the network gets, None if nothing is kept. mask: m. blend: w. clean: content, audio carried. noise: the
    run's own.
    """

    tokens: TokenMasks | None
    mask: torch.Tensor
    blend: torch.Tensor
    clean: torch.Tensor
    noise: torch.Tensor
    streams: Streams
    settings: SamplerSettings

    @classmethod
    def of(cls, masks: Masks, noise: torch.Tensor, settings: SamplerSettings, dtype: torch.dtype) -> Keeper:
        """noise: packed fp32 [N]; its device is where everything goes. dtype: the network's."""
        streams = Streams.of(masks.content)
        video = resize_video_mask(masks.video, *streams.video[2:])
        audio = resize_audio_mask(masks.audio, streams.audio[-1])
        pooled = pool_video(video), pool_audio(audio)
        tokens = tuple(for_network(p.to(noise.device), dtype) for p in pooled)
        mask = streams.join(video, audio).to(noise.device)
        clean = streams.join(masks.content.video, masks.content.audio * audio_scale(settings))
        return cls(
            tokens=None if all(t is None for t in tokens) else TokenMasks(*tokens),
            mask=mask,
            blend=_blend(mask, streams.join(*pooled).to(noise.device)),
            clean=clean.to(noise.device),
            noise=noise,
            streams=streams,
            settings=settings,
        )

    def show(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """The state handed to the network in place of x."""
        kept = self.injected(sigma)
        kept = kept + self.blend * (x - kept)
        return x * self.mask + kept * (1.0 - self.mask)

    def restore(self, denoised: torch.Tensor) -> torch.Tensor:
        """The network's estimate with kept content put back; this drives the sampler and is its history."""
        return denoised * self.mask + self.clean * (1.0 - self.mask)

    def finish(self, made: Latents, content: Latents) -> Latents:
        """The run's latents with those of mask 0 as they were given: updates bring them back but for a rounding."""
        video, audio = self.streams.split(self.mask)
        return Latents(
            video=torch.where(video > 0, made.video, content.video.to(made.video)),
            audio=torch.where(audio > 0, made.audio, content.audio.to(made.audio)),
        )

    def injected(self, sigma: float) -> torch.Tensor:
        """Kept content as the network should see it at `sigma`: video at the conditions' level, audio clean."""
        video, audio = self.streams.split(self.clean)
        noise, _ = self.streams.split(self.noise)
        level = torch.tensor(sigma, dtype=torch.float32).clamp(min=MIN_SIGMA)
        carried = level / audio_sigma(level, self.settings.shift, self.settings.audio_shift)
        return self.streams.join(
            VISUAL_LEVEL * video + (1.0 - VISUAL_LEVEL) * noise,
            audio * float(carried) / audio_scale(self.settings),
        )


def _blend(mask: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    share = ((pooled - mask) / (1.0 - mask).clamp(min=1e-6)).clamp(0.0, 1.0)
    return torch.where(mask < 1.0, share, torch.zeros_like(share))

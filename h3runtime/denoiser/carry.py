"""Audio carried on the video's sigma, so that both streams are one latent for the sampler.

Does the two conversions around the network and the packing of both streams into one vector; knows no sampler and no
network. Fed by the denoising loop. Both streams share a base time but not a shift, so at one step the audio's own sigma
differs from the video's. ComfyUI rescales the audio instead of stepping it on its own clock (dit-contract §5.2):

    s   = shift / audio_shift
    y   = (sigma / sigma_a) x_a            carried latent; ends at s * x0, so s divides what comes out
    x_a = c y,  c = sigma_a / sigma        what the network sees
    v_y = (1 - s) x_a + f v_a,  f = 1 + (s - 1) sigma_a     so that y - sigma v_y = s (x_a - sigma_a v_a)

c and f are fp32 values, rounded to the dtype of the latent that they multiply; every product and sum rounds there too.

Packed latent, one vector [N]: video [1, C, T, h, w] flattened, then audio [1, 32, 2, A] flattened, carried.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser.schedule import audio_sigma, network_sigma


@dataclass(frozen=True, slots=True)
class Carry:
    """The conversion at one sigma. scale: s. into, out: c and f above, fp32 []."""

    scale: float
    into: torch.Tensor
    out: torch.Tensor

    @classmethod
    def at(cls, sigma: float, settings: SamplerSettings) -> Carry:
        scale = audio_scale(settings)
        video = network_sigma(sigma)
        audio = audio_sigma(video, settings.shift, settings.audio_shift)
        return cls(scale, into=audio / video, out=1.0 + (scale - 1.0) * audio)

    def to_network(self, carried: torch.Tensor) -> torch.Tensor:
        """Carried latent -> the stream's own, any shape, same dtype."""
        return carried * _rounded(self.into, carried.dtype)

    def to_sampler(self, audio: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
        """The stream's own latent and velocity -> the velocity of the carried latent, same dtype."""
        return (1.0 - self.scale) * audio + _rounded(self.out, audio.dtype) * velocity


def audio_scale(settings: SamplerSettings) -> float:
    """s: 4 at shifts 12 and 3."""
    return settings.shift / settings.audio_shift


def _rounded(factor: torch.Tensor, dtype: torch.dtype) -> float:
    """As a Python number, which joins an operation on any device without a copy and is exact in it."""
    return float(factor.to(dtype))


@dataclass(frozen=True, slots=True)
class Streams:
    """Shapes of the two streams inside a packed latent."""

    video: torch.Size
    audio: torch.Size

    @classmethod
    def of(cls, latents: Latents) -> Streams:
        return cls(latents.video.shape, latents.audio.shape)

    def join(self, video: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        """Both streams -> one vector [N]; shapes that broadcast to the streams' are expanded."""
        return torch.cat([video.expand(self.video).flatten(), audio.expand(self.audio).flatten()])

    def split(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One vector [N] -> views of video and audio."""
        seam = self.video.numel()
        return packed[:seam].view(self.video), packed[seam:].view(self.audio)

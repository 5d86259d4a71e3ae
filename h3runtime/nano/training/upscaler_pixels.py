"""What the latent upscaler is trained on beside latents: the pixels that the video VAE's decoder makes of them.

    upscaled, twice normalised -> out of both normalisations -> decoder (held still) -> `video_losses.reconstruction`

Compared with the scenes as drawn at the larger size. The decoder sees all of a picture at once here, as the runtime's
does up to one tile; larger sides would be decoded in tiles and are left out. Clips are of one piece of latents. Fed by
`upscaler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from h3runtime.nano import pictures
from h3runtime.nano.training.video_decoding import TrainedDecoder
from h3runtime.nano.training.video_losses import LossWeights, reconstruction
from h3runtime.nano.world import Scene
from h3runtime.vae.chunks import PIECE_LATENTS, decoded_frames
from h3runtime.vae.video_pixels import normalise
from h3runtime.vae.video_vae import VideoVae

if TYPE_CHECKING:
    from h3runtime.nano.training.upscaler import UpscalerTraining

WEIGHTS = LossWeights(latents=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class PixelLoss:
    """frames: uint8 [N, F, side, side, 3] by side. mean, std [C, 1, 1, 1]: the video VAE's. Where it computes is where
    they lie."""

    decoder: TrainedDecoder
    mean: torch.Tensor
    std: torch.Tensor
    frames: dict[int, torch.Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, vae: VideoVae, scenes: Sequence[Scene], recipe: UpscalerTraining) -> PixelLoss:
        """The decoder's parameters take no gradient from here on. AssertionError for clips of several pieces."""
        assert recipe.frames == decoded_frames(PIECE_LATENTS), recipe.frames
        vae.requires_grad_(False)
        mean, std = (getattr(vae, name).float().view(-1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
        device = mean.device
        frames = {}
        for side in sorted({large for _, large in recipe.pairs if large <= vae.tiling.size}):
            parts = [scenes[first : first + recipe.at_once] for first in range(0, len(scenes), recipe.at_once)]
            frames[side] = torch.cat([pictures.render(part, side, side, recipe.frames, device) for part in parts])
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return cls(TrainedDecoder(vae, dtype), mean, std, frames)

    def __call__(self, made: torch.Tensor, index: torch.Tensor, side: int) -> torch.Tensor:
        """made: fp32 [B, C, T, h, w] in the upscaler's space. index int64 [B]: their clips. fp32 []."""
        latents = (made * self.std + self.mean) * self.std + self.mean
        frames = self.frames[side][index]
        wanted = normalise(frames.flatten(0, 1), torch.float32)[0].permute(1, 2, 3, 0).reshape(frames.shape)
        loss, _ = reconstruction(self.decoder(latents), wanted, WEIGHTS)
        return loss

"""A contract's clip as the network sees it: layout, made-up text, references and noise. Nothing is encoded for it.

Text rows are the contract's, all of text; a reference is a random latent of the size that admission would give it, so
what the text encoder would be shown of it has no rows. Fed by `step` with a contract; read by its lanes and its peer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.contract import VIDEO_CHANNELS, Contract, ReferenceMedium
from h3runtime.core import FPS, PackedLayout, Reference, SamplerSettings, TextFeatures
from h3runtime.denoiser.noise import AUDIO_CHANNELS, target_noise
from h3runtime.engine.conditions.gathering import reference_shape
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size
from h3runtime.packing.layout import pack

LATENTS_PER_SECOND = 40
"""Of a sound (dit-contract §3.3)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """video [1, 24, T, h, w], audio [1, 32, 2, A]: noise, fp32 on the device. settings: the contract's."""

    name: str
    layout: PackedLayout
    text: TextFeatures
    references: tuple[Reference, ...]
    video: torch.Tensor
    audio: torch.Tensor
    settings: SamplerSettings


def workload_of(contract: Contract, text_dim: int, device: torch.device) -> Workload:
    sampling, source = contract.sampling, torch.Generator().manual_seed(int(contract.sampling.seed))
    references = tuple(_reference(medium, contract, source) for medium in contract.references)
    _, frames, height, width = contract.latents.video
    sounds, tags = contract.latents.audio[2], np.ones(contract.rows.text, dtype=np.int64)
    layout = pack(frames, height, width, sounds, tags, [], [reference_shape(one) for one in references])
    drawn = target_noise(int(sampling.seed), frames, height, width, sounds)
    settings = SamplerSettings(
        steps=sampling.steps,
        sampler=sampling.sampler,
        scheduler=sampling.scheduler,
        shift=sampling.shift,
        audio_shift=sampling.audio_shift,
        seed=int(sampling.seed),
    )
    return Workload(
        name=contract.name,
        layout=layout,
        text=TextFeatures(torch.randn(1, contract.rows.text, text_dim, generator=source).to(device), tags),
        references=references,
        video=drawn.video.to(device),
        audio=drawn.audio.to(device),
        settings=settings,
    )


def _reference(medium: ReferenceMedium, contract: Contract, source: torch.Generator) -> Reference:
    seconds, own = medium.seconds or 0.0, (medium.width or 0, medium.height or 0)
    sound = torch.randn(1, AUDIO_CHANNELS, 2, round(seconds * LATENTS_PER_SECOND), generator=source)
    if medium.type == "audio":
        return Reference("audio", None, sound)
    if medium.type == "image":
        size = geometry.reference_image_size(*own, Size(contract.width, contract.height), "match")
        return Reference("image", _picture(1, size, source))
    frames = geometry.reference_frames(round(seconds * FPS), contract.frames)
    assert frames is not None, "shorter than any clip"
    latents = _picture(geometry.latent_frames(frames), geometry.reference_video_size(*own), source)
    return Reference("video", latents, sound if medium.sound else None)


def _picture(frames: int, size: Size, source: torch.Generator) -> torch.Tensor:
    height, width = geometry.latent_side(size.height), geometry.latent_side(size.width)
    return torch.randn(1, VIDEO_CHANNELS, frames, height, width, generator=source)

"""A source and its masks -> what is kept while the rest is generated (dit-contract §8).

The source is stretched to the canvas and encoded as a clip of the target's length; its sound is cut or continued with
silence to the target's A latents. A video mask is brought to the canvas by `mask_pixels`; an audio mask is given in
seconds, and a latent takes the value of the span that its middle lies in. Fed by `gathering`; read by the denoising
loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from h3runtime.core import ClipInput, GenerateSpec, Latents, MaskSpan, MediaFile, SourceInput
from h3runtime.denoiser.masks import Masks
from h3runtime.engine.conditions.media_cache import Encoded
from h3runtime.engine.conditions.media_encoder import MediaEncoder, clip_steps
from h3runtime.engine.conditions.sound_cut import SoundCut
from h3runtime.engine.conditions.told_inputs import Given, got_clip, got_picture, got_sound
from h3runtime.packing.geometry import LATENTS_PER_SECOND, audio_latents


@dataclass(frozen=True, slots=True)
class Kept:
    masks: Masks
    given: tuple[Given, ...]


def source_steps(source: SourceInput, frames: int) -> int:
    """Pieces of progress that a source of a target of F `frames` counts for."""
    mask = _first_frames(source.video_mask, frames)
    masked = clip_steps(mask) if isinstance(mask, ClipInput) else int(mask is not None)
    return clip_steps(source.clip) + (source.sound is not None) + masked


def kept(source: SourceInput, spec: GenerateSpec, encoder: MediaEncoder) -> Kept:
    """Encode what is kept and read what keeps it. Content without sound is silence of no meaning: its mask is all 1."""
    assert source.clip.frames == spec.frames, f"a source of {source.clip.frames} frames for {spec.frames}"
    latents = audio_latents(spec.frames)
    seen = encoder.clip(source.clip, spec.width, spec.height, "stretch")
    heard = None if source.sound is None else encoder.sound(source.sound, SoundCut("filling", latents))
    mask = _first_frames(source.video_mask, spec.frames)
    video = None if mask is None else _video_mask(mask, spec, encoder)
    audio = None if source.audio_mask is None else audio_mask(source.audio_mask, latents)
    content = Latents(seen.latent, _silence(encoder, latents) if heard is None else heard.latent)
    masks = Masks(content, video, None if heard is None else audio)
    return Kept(masks, tuple(_given(source, mask, spec, seen, heard)))


def audio_mask(spans: Sequence[MaskSpan], latents: int) -> torch.Tensor:
    """fp32 [1, 1, 2, A], alike for both channels; latent j's middle is at (j + 0.5) / 40 s. Unlisted time is 1."""
    middles = (torch.arange(latents, dtype=torch.float64) + 0.5) / LATENTS_PER_SECOND
    mask = torch.ones(latents)
    for span in spans:
        mask[(middles >= span.start) & (middles < span.end)] = span.value
    return mask.expand(1, 1, 2, latents)


def _first_frames(mask: MediaFile | ClipInput | None, frames: int) -> MediaFile | ClipInput | None:
    """Of a mask clip no more than the target has."""
    return ClipInput(mask.file, mask.first, min(mask.frames, frames)) if isinstance(mask, ClipInput) else mask


def _video_mask(mask: MediaFile | ClipInput, spec: GenerateSpec, encoder: MediaEncoder) -> torch.Tensor:
    """fp32 [1, 1, F or 1, H/8, W/8]; a mask clip that ends early holds its last picture."""
    if isinstance(mask, MediaFile):
        return encoder.mask_picture(mask, spec.width, spec.height).latent.cpu().float() / 255
    pixels = encoder.mask_clip(mask, spec.width, spec.height).latent.cpu().float() / 255
    missing = spec.frames - pixels.shape[2]
    return torch.cat([pixels, pixels[:, :, -1:].expand(-1, -1, missing, -1, -1)], 2)


def _silence(encoder: MediaEncoder, latents: int) -> torch.Tensor:
    return torch.zeros(1, encoder.vaes.audio.config.latent_channels, 2, latents, device=encoder.device)


def _given(
    source: SourceInput, mask: MediaFile | ClipInput | None, spec: GenerateSpec, seen: Encoded, heard: Encoded | None
) -> Iterator[Given]:
    size, field = (spec.width, spec.height), source.clip.file.field
    yield Given(field, "video", source.clip.file, got_clip(*size, source.clip.frames, seen.latents))
    if source.sound is not None and heard is not None:
        yield Given(f"{field}.audio", "audio", source.sound.file, got_sound(heard))
    if isinstance(mask, MediaFile):
        yield Given(mask.field, "image", mask, got_picture(*size, seen.latents))
    elif mask is not None:
        yield Given(mask.file.field, "video", mask.file, got_clip(*size, mask.frames, seen.latents))

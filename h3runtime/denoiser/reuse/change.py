"""How far what a step shows is from what an earlier one showed, relatively, for picture and sound.

    change = sum |now - before| w / sum |before| w      w: the mask where there is one, so that what is kept, and hardly
                                                        changes, makes no step look still

Tensors are compared in fp32, each how many-th value of what is worth comparing; nothing of the latents' size is made.
Both figures are one tensor [2], read by the host with a single copy. Fed by `latents` and `first_block`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.reuse.rule import Change

TINY = 1e-20
"""A stream of which nothing is generated has changed by 0, not by 0 / 0."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What is compared of picture and sound, fp32, any shapes. No views: what they come from is overwritten."""

    video: torch.Tensor
    audio: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """Masks of what a `Pair` holds, broadcasting against it; None where all of it is generated."""

    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


def thinned(video: torch.Tensor, audio: torch.Tensor, factor: int) -> Pair:
    """Latents [1, C, T, h, w] and [1, C, 2, A]: each `factor`-th of every line and of its values, and each such time of
    the sound, both channels."""
    return Pair(_copied(video[..., ::factor, ::factor]), _copied(audio[..., ::factor]))


def thinned_masks(masks: TokenMasks | None, factor: int) -> Weights:
    """Of the same latents."""
    if masks is None:
        return Weights()
    video = None if masks.video is None else _copied(masks.video[..., ::factor, ::factor])
    return Weights(video, None if masks.audio is None else _copied(masks.audio[..., ::factor]))


def relative_change(now: Pair, before: Pair, weights: Weights) -> Change:
    """Waits for the device: the one time a step that its host must know something before it goes on."""
    both = torch.stack([_relative(now.video, before.video, weights.video), _of_sound(now, before, weights)])
    video, audio = both.tolist()
    return video, audio


def _of_sound(now: Pair, before: Pair, weights: Weights) -> torch.Tensor:
    return _relative(now.audio, before.audio, weights.audio)


def _relative(now: torch.Tensor, before: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    moved, size = (now - before).abs(), before.abs()
    if weight is not None:
        moved, size = moved * weight, size * weight
    return moved.sum() / size.sum().clamp(min=TINY)


def _copied(part: torch.Tensor) -> torch.Tensor:
    return part.to(torch.float32, copy=True).contiguous()

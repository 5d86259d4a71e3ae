"""How far what a step shows is from what an earlier one showed, for picture and sound.

    of what a first block adds    sum |now - before| w / sum |before| w
    of velocities v that nobody   k sum |x - x_before| w / sum |v| w                            (dit-contract §9)
    has made yet, by latents x    k = sum |v - v_earlier| w / sum |x_v - x_earlier| w

    w: the mask where there is one, so that what is kept, and hardly changes, makes no step look still

v, v_earlier: of the last two steps that were computed; k is how far they moved for each move of the latents.
Tensors are compared in fp32, each how many-th value of what is worth comparing; nothing of the latents' size is made.
Both figures are one tensor [2], read by the host with a single copy. Fed by `latents` and `first_block`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.reuse.rule import Change

LEAST = 4
"""Of a side of 8 latents each eighth is a corner, whose changes spared twice as many steps as those of all latents do.
From 512 px on nothing is taken that EasyCache wouldn't take."""
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
    the sound, both channels. Of a picture's side at least `LEAST` are taken: a corner alone tells little of it."""
    return Pair(_copied(_thinned_picture(video, factor)), _copied(audio[..., ::factor]))


def _thinned_picture(video: torch.Tensor, factor: int) -> torch.Tensor:
    height, width = (min(factor, max(1, side // LEAST)) for side in video.shape[-2:])
    return video[..., ::height, ::width]


def thinned_masks(masks: TokenMasks | None, factor: int) -> Weights:
    """Of the same latents."""
    if masks is None:
        return Weights()
    video = None if masks.video is None else _copied(_thinned_picture(masks.video, factor))
    return Weights(video, None if masks.audio is None else _copied(masks.audio[..., ::factor]))


def relative_change(now: Pair, before: Pair, weights: Weights) -> Change:
    """Waits for the device, as `read` does."""
    return read(moves(now, before, weights) / sizes(before, weights))


def moves(now: Pair, before: Pair, weights: Weights) -> torch.Tensor:
    """sum |now - before| w of picture and sound, fp32 [2]."""
    return _sums(Pair((now.video - before.video).abs(), (now.audio - before.audio).abs()), weights)


def sizes(of: Pair, weights: Weights) -> torch.Tensor:
    """sum |of| w of picture and sound, fp32 [2]; never 0."""
    return _sums(Pair(of.video.abs(), of.audio.abs()), weights).clamp(min=TINY)


def read(change: torch.Tensor) -> Change:
    """[2] on the host: the one time a step that it waits for the device, since it must know before it goes on."""
    video, audio = change.tolist()
    return video, audio


def _sums(of: Pair, weights: Weights) -> torch.Tensor:
    parts = (of.video, weights.video), (of.audio, weights.audio)
    return torch.stack([(part if weight is None else part * weight).sum() for part, weight in parts])


def _copied(part: torch.Tensor) -> torch.Tensor:
    return part.to(torch.float32, copy=True).contiguous()

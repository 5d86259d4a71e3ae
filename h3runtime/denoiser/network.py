"""A denoising network as its loop uses it: what is asked of it, and nothing of how it answers.

Holds protocols only. The DiT is one, and so is what `reuse` wraps around it. Read by `denoise` and `reuse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.core import Keyframe, PackedLayout, Reference
from h3runtime.denoiser.masks import TokenMasks

PreparedT = TypeVar("PreparedT")
PreparedInT = TypeVar("PreparedInT", contravariant=True)


class LatentSizes(Protocol):
    """What the loop has to know of a network's configuration."""

    @property
    def channels(self) -> int: ...

    @property
    def audio_channels(self) -> int: ...


class Velocities(Protocol[PreparedInT]):
    """What a step asks for."""

    def __call__(
        self,
        prepared: PreparedInT,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
        sigma_next: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Velocities noise - x0 of both streams in their own units; audio is the stream's own latent."""
        ...


class Network(Velocities[PreparedT], Protocol[PreparedT]):
    """The DiT as the loop uses it."""

    @property
    def config(self) -> LatentSizes: ...

    def refine(self, text_hidden: torch.Tensor) -> torch.Tensor:
        """[1, L, text_dim] -> [1, L, hidden]; once a run."""
        ...

    def prepare(
        self,
        layout: PackedLayout,
        refined: torch.Tensor,
        keyframes: Sequence[Keyframe],
        references: Sequence[Reference],
        noise_seed: int,
        sigmas: Sequence[float] | None,
        *,
        shift: float,
        audio_shift: float,
        attention: AttentionBackend | None,
    ) -> PreparedT:
        """Everything that doesn't change from step to step. `sigmas`: all that will be asked for, if their timesteps
        follow from them alone, which masks prevent."""
        ...

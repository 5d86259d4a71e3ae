"""What has been made of media lately, by their content: a request that comes again decodes and encodes nothing.

An entry belongs to one medium used in one way, so two requests share what they have in common. Entries stand under the
SHA-256 of the file's bytes, never its name. Tensors lie on the CPU. Fed and read by `media_encoder`; its bound is the
prompt cache's, of which it takes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.conditioning.bounded_cache import BoundedCache

Pixels = NDArray[np.uint8]
Use = tuple[str | int | float | None, ...]


@dataclass(frozen=True, slots=True)
class MediaKey:
    """content: SHA-256 of the file. vae: of the weights that encode it, if any do. use: everything else that the result
    depends on: the kind of medium, which part of it, at what size."""

    content: str
    vae: str
    use: Use


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """latent: fp32, video [1, C, T, h, w] or sound [1, C, 2, A], normalised; a mask's pixels, uint8
    [1, 1, F, H/8, W/8], stay as they are. shown: what the text encoder may see of it, uint8 [n, H, W, 3]: the picture,
    or every 12th frame. samples: of the sound behind `latent`, at 32 kHz."""

    latent: torch.Tensor
    shown: Pixels | None = None
    samples: int = 0

    @property
    def latents(self) -> int:
        """T of a picture or clip, A of a sound."""
        return self.latent.shape[2] if self.latent.ndim == 5 else self.latent.shape[3]

    @property
    def nbytes(self) -> int:
        return self.latent.nbytes + (0 if self.shown is None else self.shown.nbytes)


class MediaCache(BoundedCache[MediaKey, Encoded]):
    """At most `max_bytes` of latents and shown pixels."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, lambda encoded: encoded.nbytes)

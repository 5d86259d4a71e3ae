"""Features of recent prompts, and what they depend on.

A key is all of that: text pieces as written, the pixels of vision pieces, the encoder's weights and the preprocessing
version. Fed and read by `conditioner`; what is kept and what goes is `bounded_cache`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from h3runtime.conditioning.bounded_cache import BoundedCache
from h3runtime.conditioning.pieces import Piece
from h3runtime.conditioning.vision_preprocess import PREPROCESSING_VERSION
from h3runtime.core import TextFeatures


@dataclass(frozen=True, slots=True)
class PromptKey:
    """text: the text pieces, None where a vision piece stands; images: digests of those, in order."""

    text: tuple[str | None, ...]
    images: tuple[str, ...]
    encoder: str
    preprocessing: int


def prompt_key(pieces: Iterable[Piece], encoder: str) -> PromptKey:
    """`encoder`: a hash of the text encoder's weights."""
    listed = tuple(pieces)
    text = tuple(p if isinstance(p, str) else None for p in listed)
    images = tuple(_digest(p.pixels) for p in listed if not isinstance(p, str))
    return PromptKey(text, images, encoder, PREPROCESSING_VERSION)


class PromptCache(BoundedCache[PromptKey, TextFeatures]):
    """Features by `PromptKey`, at most `max_bytes` of them."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, _bytes)


def _bytes(features: TextFeatures) -> int:
    return features.hidden.numel() * features.hidden.element_size() + features.tags.nbytes


def _digest(pixels: NDArray[np.uint8]) -> str:
    digest = sha256(str(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()

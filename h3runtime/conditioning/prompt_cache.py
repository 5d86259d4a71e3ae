"""Features of recent prompts, least recently used out first, bounded by bytes.

A key is all that features depend on: text pieces as written, the pixels of vision pieces, the encoder's weights and the
preprocessing version. Shared results must not be written to. Not thread-safe: one engine, one thread. Fed and read by
`conditioner`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

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


class PromptCache:
    """`bytes` never exceeds `max_bytes`; features larger than that are not kept. `hits` and `misses` count `get`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[PromptKey, TextFeatures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: PromptKey) -> TextFeatures | None:
        features = self._entries.get(key)
        if features is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return features

    def put(self, key: PromptKey, features: TextFeatures) -> None:
        replaced = self._entries.pop(key, None)
        if replaced is not None:
            self.bytes -= _bytes(replaced)
        if _bytes(features) > self.max_bytes:
            return
        self._entries[key] = features
        self.bytes += _bytes(features)
        while self.bytes > self.max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self.bytes -= _bytes(dropped)

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0


def _bytes(features: TextFeatures) -> int:
    return features.hidden.numel() * features.hidden.element_size() + features.tags.nbytes


def _digest(pixels: NDArray[np.uint8]) -> str:
    digest = sha256(str(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()

"""Prompt and media -> text features, in one call: tokenizer, encoder and cache put together.

Loads nothing and judges nothing: fed by `engine` with finished parts and fitted pictures.
"""

from __future__ import annotations

from collections.abc import Iterable

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.pieces import Piece
from h3runtime.conditioning.presentation import present
from h3runtime.conditioning.prompt_cache import PromptCache, prompt_key
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import ShouldStop, TextFeatures
from h3runtime.errors import CheckpointError, Offence


class Conditioner:
    """`encoder_hash` names the encoder's weights in cache keys.

    Raises CheckpointError if the tokenizer gives ids that the encoder has no embedding for.
    """

    def __init__(self, tokenizer: PromptTokenizer, encoder: TextEncoder, encoder_hash: str, cache: PromptCache) -> None:
        _check_fit(tokenizer, encoder)
        self.tokenizer = tokenizer
        self.encoder = encoder
        self.encoder_hash = encoder_hash
        self.cache = cache

    def condition(self, pieces: Iterable[Piece], should_stop: ShouldStop | None = None) -> TextFeatures:
        """`pieces` as `keyframe_pieces` or `reference_pieces` lay them out; see `TextEncoder.encode` for the result."""
        listed = tuple(pieces)
        key = prompt_key(listed, self.encoder_hash)
        features = self.cache.get(key)
        if features is None:
            features = self.encoder.encode(present(listed, self.tokenizer), should_stop)
            self.cache.put(key, features)
        return features


def _check_fit(tokenizer: PromptTokenizer, encoder: TextEncoder) -> None:
    rows, name = encoder.config.vocab, "model.embed_tokens.weight"
    if tokenizer.ids > rows:
        message = f"has {rows} rows, the tokenizer {tokenizer.ids} ids"
        raise CheckpointError(f"the text encoder's {name} {message}", [Offence(name, message)])

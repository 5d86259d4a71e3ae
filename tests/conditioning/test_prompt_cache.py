from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.conditioning import prompt_cache
from h3runtime.conditioning.conditioner import Conditioner
from h3runtime.conditioning.pieces import keyframe_pieces
from h3runtime.conditioning.prompt_cache import PromptCache, prompt_key
from h3runtime.core import TextFeatures
from h3runtime.errors import CheckpointError
from tests.conditioning import small
from tests.conditioning.small import picture

ROW = 4 * 10 + 8


def features(rows: int) -> TextFeatures:
    return TextFeatures(torch.zeros(1, rows, 10), np.ones(rows, dtype=np.int64))


def key(text: str):
    return prompt_key([text], "weights")


def test_the_least_recently_used_goes_first() -> None:
    cache = PromptCache(3 * ROW)
    for text in "abc":
        cache.put(key(text), features(1))
    assert cache.get(key("a")) is not None
    cache.put(key("d"), features(1))
    assert [cache.get(key(t)) is not None for t in "abcd"] == [True, False, True, True]
    assert (cache.hits, cache.misses, len(cache), cache.bytes) == (4, 1, 3, 3 * ROW)


def test_what_is_larger_than_the_bound_is_not_kept_and_drops_nothing() -> None:
    cache = PromptCache(2 * ROW)
    cache.put(key("a"), features(1))
    cache.put(key("b"), features(3))
    assert cache.get(key("a")) is not None and cache.get(key("b")) is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 6)), max_size=30))
def test_bytes_are_counted_right_and_never_pass_the_bound(puts) -> None:
    cache = PromptCache(8 * ROW)
    latest = {}
    for text, rows in puts:
        latest[text] = features(rows)
        cache.put(key(text), latest[text])
        assert cache.bytes <= cache.max_bytes
        assert cache.get(key(text)) is latest[text]
    kept = [found for text in latest if (found := cache.get(key(text))) is not None]
    assert sum(f.hidden.shape[1] * ROW for f in kept) == cache.bytes
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)


def test_all_that_features_depend_on_is_in_the_key(monkeypatch) -> None:
    frame = picture(32, 32)
    base = prompt_key(keyframe_pieces("p", [frame]), "weights")
    assert base == prompt_key(keyframe_pieces("p", [frame.copy()]), "weights")
    other = frame.copy()
    other[0, 31, 31, 2] ^= 1
    others = {
        prompt_key(keyframe_pieces("q", [frame]), "weights"),
        prompt_key(keyframe_pieces("p", [other]), "weights"),
        prompt_key(keyframe_pieces("p", [frame.reshape(1, 16, 64, 3)]), "weights"),
        prompt_key(keyframe_pieces("p", [frame, frame]), "weights"),
        prompt_key(keyframe_pieces("p"), "weights"),
        prompt_key(keyframe_pieces("p", [frame]), "other weights"),
    }
    monkeypatch.setattr(prompt_cache, "PREPROCESSING_VERSION", -1)
    others.add(prompt_key(keyframe_pieces("p", [frame]), "weights"))
    assert len(others) == 7 and base not in others


def test_the_place_of_text_counts_not_only_its_words() -> None:
    """`ab` in one piece and in two are other ids."""
    assert prompt_key(["ab"], "w") != prompt_key(["a", "b"], "w")


def test_a_repeated_prompt_is_encoded_once(byte_tokenizer) -> None:
    config = replace(small.CONFIG, vocab=byte_tokenizer.ids, layers=1)
    conditioner = Conditioner(byte_tokenizer, small.encoder(small.weights(config), config), "w", PromptCache(1 << 20))
    pieces = keyframe_pieces("\x00\x01", [picture(32, 64)])
    first = conditioner.condition(pieces)
    assert conditioner.condition(keyframe_pieces("\x00\x01", [picture(32, 64)])) is first
    assert (conditioner.cache.hits, conditioner.cache.misses) == (1, 1)
    assert conditioner.condition(keyframe_pieces("\x00\x02")) is not first


def test_ids_without_an_embedding_are_refused_at_once(byte_tokenizer, small_encoder) -> None:
    with pytest.raises(CheckpointError, match="has 600 rows, the tokenizer 151676 ids"):
        Conditioner(byte_tokenizer, small_encoder, "w", PromptCache(0))

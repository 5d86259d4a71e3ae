"""Shared fixtures: the byte tokenizer, and the real one where its files are at hand."""

import pytest

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.tokenizer import PromptTokenizer
from tests.conditioning import small
from tests.parity.kinds import tokenizer as recorded


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory) -> PromptTokenizer:
    return small.byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def real_tokenizer() -> PromptTokenizer:
    return recorded.tokenizer()


@pytest.fixture(scope="session")
def small_encoder() -> TextEncoder:
    return small.encoder(small.weights())

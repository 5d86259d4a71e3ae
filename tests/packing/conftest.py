"""The tokenizer of one row a byte."""

import pytest

from h3runtime.conditioning.tokenizer import PromptTokenizer
from tests.conditioning import small


@pytest.fixture(scope="package")
def byte_tokenizer(tmp_path_factory) -> PromptTokenizer:
    return small.byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))

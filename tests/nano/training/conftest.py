"""What several tests of the training share; nothing in it is changed by them."""

from __future__ import annotations

import pytest

from h3runtime.nano.training.lectern import Lectern
from h3runtime.nano.vocabulary import Vocabulary
from tests.nano.training.small import small_lectern


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary.load()


@pytest.fixture(scope="session")
def lectern() -> Lectern:
    return small_lectern()

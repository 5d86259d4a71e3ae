"""Masters with made-up values, written once, and the set that is derived from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.embedded.made_masters import write_masters


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of masters. Tests that change something copy it."""
    return write_masters(tmp_path_factory.mktemp("masters"))

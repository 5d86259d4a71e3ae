"""What tests of jobs share: a folder whose syncs cost nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: a disk takes 5 ms to sync each of thousands of commits."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="h3jobs-", dir=MEMORY) as folder:
        yield Path(folder)

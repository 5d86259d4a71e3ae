"""Loading within a limit on memory that the kernel enforces, page cache counted: a set of 4 GiB.

    limit, nothing kept      memory before + the largest tensor x 1.15 + 512 MiB
    limit, all kept          memory before + the weights' bytes x 1.15

The child reads from the disk, and every page that it reads is charged to its group until it is dropped. It must end
well, never meet the limit (what meets it is reclaimed from, or killed), read each byte from the disk once, and leave no
pages. Where a machine lets nobody make a group, the child is watched instead: what it holds stays below these bounds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.made_gigabytes import MadeSet, write_gigabytes
from tests.checkpoint.memory_group import MemoryGroup, add, open_group
from tests.checkpoint.page_cache import cached_pages, can_drop

MIB, GIB = 1 << 20, 1 << 30
ROOT = Path(__file__).parents[2]
FEW_PAGES = 64
"""What may stay: the kernel keeps what it can't let go of at the moment."""
LEFT_CACHE = 32 * MIB
"""Of code and of what the child's own files take."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeSet]:
    folder = tmp_path_factory.mktemp("gigabytes")
    if not can_drop(folder):
        pytest.skip("the file system keeps files in memory alone")
    yield write_gigabytes(folder)
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Told:
    """What the child says, and what its group counted; None where there was none. cached_before, cached: page cache of
    the group when the load began, and when it was over."""

    child: dict[str, Any]
    limit: int
    version: int | None = None
    before: int = 0
    peak: int = 0
    hits: int = 0
    kills: int = 0
    cached_before: int = 0
    cached: int = 0


def load_within(above: int, mode: str, *paths: Path) -> Told:
    """Load in a child that may take `above` bytes more than it has when all its code is there."""
    command = [sys.executable, "-m", "tests.checkpoint.limited_load", mode, *map(str, paths)]
    with (
        open_group() as group,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child,
    ):
        try:
            return _loaded(child, group, above)
        finally:
            child.kill()


def _loaded(child: subprocess.Popen[str], group: MemoryGroup | None, above: int) -> Told:
    assert child.stdin is not None and child.stdout is not None
    if group is not None:
        add(group, child.pid)
    assert child.stdout.readline() == "ready\n"
    before = cached_before = hits = 0
    if group is not None:
        before, cached_before = group.used(), group.cached()
        group.limit(before + above)
        hits = group.hits()
    child.stdin.write("\n")
    child.stdin.flush()
    line = child.stdout.readline()
    assert line, f"the child was killed within {above} bytes"
    told = Told(json.loads(line), above)
    if group is not None:
        counted = (group.version, before, group.peak(), group.hits() - hits, group.kills())
        told = Told(told.child, before + above, *counted, cached_before, group.cached())
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.wait(30) == 0
    return told


def require_within(told: Told, above: int) -> None:
    print(told)
    assert told.child["held_peak"] <= above
    if told.version:
        assert told.before < told.peak <= told.limit
        assert (told.hits, told.kills) == (0, 0)
        assert told.cached <= told.cached_before + LEFT_CACHE


def test_the_set_is_as_large_as_it_says(made: MadeSet) -> None:
    assert made.bytes >= 4 * GIB and made.largest == 2 * 14336 * 5376 * 2
    assert sum(path.stat().st_blocks * 512 for path in made.paths) >= made.bytes


def test_a_load_that_keeps_nothing(made: MadeSet) -> None:
    above = int(made.largest * 1.15) + 512 * MIB
    told = load_within(above, "nothing", *made.paths)
    require_within(told, above)
    assert made.bytes - MIB < told.child["bytes"] < made.bytes
    assert told.child["read_bytes"] == pytest.approx(made.bytes, rel=0.02)
    assert all(cached_pages(path)[0] <= FEW_PAGES for path in made.paths)


def test_a_load_that_keeps_everything_takes_at_most_15_percent_more(made: MadeSet) -> None:
    """On a machine whose GPU has the host's memory a weight that counted twice would get the process killed."""
    encoder = made.paths[1]
    size = encoder.stat().st_size
    told = load_within(int(size * 1.15), "everything", encoder)
    require_within(told, int(size * 1.15))
    assert told.child["bytes"] == pytest.approx(size, rel=1e-3)
    assert told.child["read_bytes"] == pytest.approx(size, rel=0.02)
    assert cached_pages(encoder)[0] <= FEW_PAGES


def test_a_limit_that_is_too_low_is_felt(made: MadeSet) -> None:
    """Else the others would show nothing. Reading alone takes twice as much."""
    with open_group() as group:
        if group is None:
            return
    with pytest.raises(AssertionError, match="was killed"):
        load_within(64 * MIB, "everything", made.paths[1])

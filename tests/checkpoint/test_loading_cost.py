"""What loading takes from the machine: memory beside the weights, and the page cache."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from h3runtime.checkpoint import blocks
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.stream import Reading, stream
from h3runtime.checkpoint.writer import encode_header
from tests.checkpoint.page_cache import cached_pages, can_drop

MIB = 1 << 20
SMALL, LARGE = 12, 160
"""MiB; twelve tensors of the one size and one of the other."""
GROUP_PAGES = (4 * MIB) // mmap.PAGESIZE
"""Pages are dropped in groups; whole ones only."""
FEW_PAGES = 64
"""What may stay: the kernel keeps what it can't let go of at the moment."""


def described() -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    sizes = {f"blocks.{i}": SMALL for i in range(12)} | {"large": LARGE}
    return {name: (torch.uint8, (size * MIB,)) for name, size in sizes.items()}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """304 MiB of zeros, for which the disk needs no room."""
    path = tmp_path_factory.mktemp("big") / "big.safetensors"
    header = encode_header(described())
    path.write_bytes(header)
    os.truncate(path, len(header) + (12 * SMALL + LARGE) * MIB)
    return path


def test_loading_holds_little_beside_the_weights(big: Path) -> None:
    command = [sys.executable, "-m", "tests.checkpoint.loading_memory", str(big)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    told = json.loads(done.stdout)
    assert told["sha256"] == hashlib.sha256(big.read_bytes()).hexdigest()
    stated = 1.15 * LARGE * MIB + 512 * MIB
    ours = blocks.SLOTS * blocks.BLOCK_BYTES + 32 * MIB
    assert told["above"] <= ours < stated
    assert told["kept"] <= 32 * MIB


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """16 MiB of noise in eight tensors, written out, so that its pages are clean, and all of them cached."""
    if not can_drop(tmp_path):
        pytest.skip("the file system keeps files in memory alone")
    path = tmp_path / "w.safetensors"
    data = torch.randint(0, 256, (16 * MIB,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    header = encode_header({f"t{i}": (torch.uint8, (2 * MIB,)) for i in range(8)})
    with path.open("wb") as file:
        file.write(header + data.numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    path.read_bytes()
    kept, pages = cached_pages(path)
    assert kept == pages
    return path


@pytest.mark.parametrize("hashed", [frozenset({0}), frozenset()])
def test_loading_leaves_no_pages_behind(on_disk: Path, hashed: frozenset[int]) -> None:
    with CheckpointFile(on_disk) as file:
        list(stream(file, ["t1", "t4", "t7"], torch.device("cpu"), Reading(hashed)))
        assert cached_pages(on_disk)[0] <= FEW_PAGES


def test_pages_go_as_soon_as_they_are_read(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", MIB)
    with CheckpointFile(on_disk) as file:
        for number, (_name, _) in enumerate(stream(file, list(file.entries), torch.device("cpu"))):
            kept, pages = cached_pages(on_disk)
            assert kept <= pages * (7 - number) / 8 + FEW_PAGES + GROUP_PAGES


def test_hashing_leaves_no_pages_behind(on_disk: Path) -> None:
    assert sha256_of(on_disk) == hashlib.sha256(on_disk.read_bytes()).hexdigest()
    sha256_of(on_disk)
    assert cached_pages(on_disk)[0] <= FEW_PAGES

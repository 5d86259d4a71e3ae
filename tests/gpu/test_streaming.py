"""The ring of page-locked buffers: none is filled anew before its bytes are on the device, and the host keeps little.

Needs no engine: `pytest -m gpu --noconftest` runs it where half of the libraries are missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from h3runtime.checkpoint import blocks
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.stream import Reading, stream
from h3runtime.checkpoint.writer import encode_header, write_file

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SLOW_CYCLES = 20_000_000
"""About 10 ms of the device's clock: far more than a block takes to be read."""


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda:0")


@pytest.mark.parametrize("block", [4096, 100_000, MIB])
@pytest.mark.parametrize("is_slow", [False, True])
def test_every_byte_arrives_however_late_the_device_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, block: int, is_slow: bool
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    path = tmp_path / "w.safetensors"
    count = 40 * block + 123
    made = {f"t{i}": torch.randint(0, 256, (count // 8,), dtype=torch.uint8) for i in range(8)}
    write_file(path, made)
    found: dict[int, str] = {}
    if is_slow:
        real = blocks.TensorFile.fill

        def fill(self: blocks.TensorFile, view: memoryview, offset: int, name: str | None = None) -> None:
            """Before each block is read, the device is busy: its copy would come long after the next reading."""
            torch.cuda._sleep(SLOW_CYCLES)
            real(self, view, offset, name)

        monkeypatch.setattr(blocks.TensorFile, "fill", fill)
    with CheckpointFile(path) as file:
        kept = dict(stream(file, list(made), device, Reading(frozenset({0}), found.__setitem__)))
    for name, tensor in made.items():
        assert kept[name].is_cuda and torch.equal(kept[name].cpu(), tensor), name
    assert found == {0: hashlib.sha256(path.read_bytes()).hexdigest()}


def test_the_host_keeps_little_of_what_the_device_gets(tmp_path: Path, device: torch.device) -> None:
    path = tmp_path / "big.safetensors"
    header = encode_header({f"t{i}": (torch.uint8, (256 * MIB,)) for i in range(4)})
    path.write_bytes(header)
    os.truncate(path, len(header) + 4 * 256 * MIB)
    command = [sys.executable, "-m", "tests.checkpoint.loading_memory", str(path), str(device)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["above"] <= blocks.SLOTS * blocks.BLOCK_BYTES + 64 * MIB < 1.15 * 256 * MIB + 512 * MIB

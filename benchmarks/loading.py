"""How fast a checkpoint's bytes come in, and what they take: `loading.py [--blocks N] [--device cpu] [--folder F]`.

Makes a file of N transformer blocks' BF16 matrices at H3's sizes (0.77 GB each, random bytes), takes it out of the page
cache, and loads it four times, each in a process of its own: first (hashed on the way), again (digest remembered),
again with H3_VERIFY=full, and once more from a warm page cache. One JSON object on stdout; seconds, bytes, bytes a
second.

`host_above` is the peak of anonymous and shared memory above what the weights take: on the CPU they are in it, on a
device they aren't. `cached` is the share of the file's pages that stay in the page cache afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.stream import Reading, stream
from h3runtime.checkpoint.verify import Verification
from h3runtime.checkpoint.writer import encode_header
from tests.checkpoint.loading_memory import Peak, held_bytes
from tests.checkpoint.page_cache import cached_pages

HIDDEN, INNER, FFN = 5376, 7168, 14336
"""dit-contract §1: widths of the residual stream, of all heads, of the feed-forward."""
SHAPES = {"qkv": (3 * INNER, HIDDEN), "out": (HIDDEN, INNER), "fc1": (2 * FFN, HIDDEN), "fc2": (HIDDEN, FFN)}
CHUNK = 64 << 20
HASHED = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=None, help="where the file is made; default: the system's own")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load is not None:
        print(json.dumps(load(given.load, torch.device(given.device), given.full)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print(json.dumps(measure(Path(folder), given.blocks, given.device), indent=1))


def measure(folder: Path, blocks: int, device: str) -> dict[str, object]:
    path = folder / "blocks.safetensors"
    write(path, blocks)
    told: dict[str, object] = {"bytes": path.stat().st_size, "largest": 2 * 2 * FFN * HIDDEN, "hash_rate": hash_rate()}
    for name, options in {"first": [], "second": [], "full": ["--full"], "warm": []}.items():
        drop(path)
        if name == "warm":
            path.read_bytes()
        command = [sys.executable, __file__, "--load", str(path), "--device", device, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        told[name] = json.loads(done.stdout)
    return told


def load(path: Path, device: torch.device, full: bool) -> dict[str, float]:
    """One load in this process, weights kept."""
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.zeros(1, device=device)
    with CheckpointFile(path) as file:
        began, before = time.perf_counter(), held_bytes()
        with Peak() as peak:
            verification = Verification(file.parts, full=full, cache_dir=path.parent / "cache")
            reading = Reading(verification.unknown, verification.found)
            kept = dict(stream(file, list(file.entries), device, reading))
            verification.finish()
        seconds = time.perf_counter() - began
    weights = sum(tensor.nbytes for tensor in kept.values())
    above = peak.bytes - before - (weights if device.type == "cpu" else 0)
    kept_pages, pages = cached_pages(path)
    return {"seconds": seconds, "rate": weights / seconds, "host_above": above, "cached": kept_pages / pages}


def write(path: Path, blocks: int) -> None:
    layout = {f"blocks.{i}.{name}": (torch.bfloat16, shape) for i in range(blocks) for name, shape in SHAPES.items()}
    left = sum(2 * rows * columns for _, (rows, columns) in layout.values())
    with path.open("wb") as file:
        file.write(encode_header(layout))
        while left:
            left -= file.write(os.urandom(min(CHUNK, left)))
        file.flush()
        os.fsync(file.fileno())


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert cached_pages(path)[0] == 0, "the page cache can't be emptied of it: no cold load to measure"


def hash_rate() -> float:
    """SHA-256 in memory, one thread."""
    data, done = bytes(CHUNK), hashlib.sha256()
    began = time.perf_counter()
    for _ in range(HASHED // CHUNK):
        done.update(data)
    return HASHED / (time.perf_counter() - began)


if __name__ == "__main__":
    main()

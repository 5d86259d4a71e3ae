"""Run by `test_loading_cost`: load one file in a process of its own and tell what it took, as JSON.

    python -m tests.checkpoint.loading_memory FILE [DEVICE]

Peaks are of anonymous and shared memory, sampled by a thread: the kernel's own counter of the resident peak counts
library code as well.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch

from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.stream import Reading, stream

FIELDS = ("RssAnon:", "RssShmem:")


def held_bytes() -> int:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0] in FIELDS)


class Peak(threading.Thread):
    """Highest `held_bytes` while the block lasts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.001):
            self.bytes = max(self.bytes, held_bytes())

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def main(path: Path, device: torch.device) -> None:
    torch.set_num_threads(1)
    if device.type == "cuda":
        # The context's own memory is no part of a load.
        torch.zeros(1, device=device)
    digests: dict[int, str] = {}
    with CheckpointFile(path) as file:
        names = list(file.entries)
        before = held_bytes()
        with Peak() as peak:
            kept = dict(stream(file, names, device, Reading(frozenset({0}), digests.__setitem__)))
        weights = sum(tensor.nbytes for tensor in kept.values() if not tensor.is_cuda)
    told = {"above": peak.bytes - before - weights, "kept": held_bytes() - before - weights, "sha256": digests[0]}
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), torch.device(*sys.argv[2:] or ["cpu"]))

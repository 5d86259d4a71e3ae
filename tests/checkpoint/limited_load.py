"""Run by `test_limited_load`: load a set in a process of its own, which somebody has put into a control group.

    python -m tests.checkpoint.limited_load nothing FILE...     every byte of the four, in the order of loading, through
                                                                the loader's reader, hashed, and each tensor let go of
    python -m tests.checkpoint.limited_load everything FILE     a text encoder, loaded and kept

It says `ready` when all code is there and waits for a line; then it loads, tells what it did as JSON, and waits for
another line, so that what it left behind can be looked at.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint.load import judge, load_module
from h3runtime.checkpoint.stream import Reading, stream
from h3runtime.checkpoint.verify import Verification
from h3runtime.engine import components
from h3runtime.engine.components import Part
from h3runtime.observe import memory
from h3runtime.settings import Settings
from tests.checkpoint.loading_memory import Peak, held_bytes

CPU = torch.device("cpu")


def all_parts(transformer: Path, encoder: Path, video: Path, audio: Path) -> list[Part]:
    settings = Settings()
    return [
        components.transformer(transformer, settings, torch.bfloat16),
        components.text_encoder(encoder),
        components.video_vae(video, settings),
        components.audio_vae(audio),
    ]


def keep_nothing(parts: Sequence[Part]) -> int:
    """Bytes of all tensors."""
    total = 0
    for part in parts:
        with part.open() as file:
            assert not list(judge(part.on_meta(file), file, part.rule))
            verification = Verification(file.parts, full=True, cache_dir=None)
            reading = Reading(verification.unknown, verification.found)
            for _, tensor in stream(file, list(file.entries), CPU, reading):
                total += tensor.nbytes
                del tensor
            verification.finish()
    return total


def keep_everything(part: Part) -> tuple[torch.nn.Module, int]:
    with part.open() as file:
        module = part.on_meta(file)
        return module, load_module(module, file, linear=DequantLinear(), device=CPU, rule=part.rule).bytes


def read_bytes() -> int:
    """That this process had from a disk."""
    lines = (line.split() for line in Path("/proc/self/io").read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == "read_bytes:")


def main(mode: str, paths: Sequence[Path]) -> None:
    torch.set_num_threads(1)
    parts = all_parts(*paths) if mode == "nothing" else [components.text_encoder(*paths)]
    print("ready", flush=True)
    sys.stdin.readline()
    kept, before, available = None, read_bytes(), memory.available_bytes()
    held, began = held_bytes(), time.monotonic()
    with Peak() as peak:
        if mode == "nothing":
            total = keep_nothing(parts)
        else:
            kept, total = keep_everything(parts[0])
    told = {
        "bytes": total,
        "seconds": time.monotonic() - began,
        "read_bytes": read_bytes() - before,
        "held_peak": peak.bytes - held,
        "available_dip": available - memory.available_bytes(),
    }
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    del kept


if __name__ == "__main__":
    main(sys.argv[1], [Path(path) for path in sys.argv[2:]])

"""Checkpoints of the published sizes: random valid codes straight to the disk, never a whole large tensor in memory.

    MadeFile -> for each stored tensor its runs (bytes made alike) -> chunks of 4 MiB -> threads make and write them
             -> the hash takes them in order

A quantised weight is made as its codes and scales at once, of the spread that its recipe asks for; large plain tensors
are random numbers of that spread; whatever a recipe writes with a function, and everything small, comes from the recipe
itself. Two chunks for each thread exist at a time: at most 128 MiB with 16 threads. Fed by `synthesis`.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from h3runtime.checkpoint.markers import SUFFIX
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.synthetic.random_bits import INT8_CODES, NVFP4_PAIRS, Bits, floats, positive
from h3runtime.checkpoint.synthetic.recipes.recipe import Spread
from h3runtime.checkpoint.synthetic.recipes.text_encoder import pre_quant_scales
from h3runtime.checkpoint.synthetic.storage import INPUT_SCALE, Scheme, marker_tensor
from h3runtime.checkpoint.writer import appearing

CHUNK = 4 << 20
MOST_THREADS = 16
STREAMED = 1 << 20
"""Plain tensors of so many numbers and more are streamed unless a recipe writes them."""
BLOCK_SCALE, BLOCK_SCALE_BINADES = 160.0, 2
"""Root mean square of NVFP4's block scales: the largest of two binades is below E4M3's 448."""
FP8_CODE = 180.0
"""Root mean square of FP8 codes: the largest is at most 448."""

Make = Callable[[], memoryview]


@dataclass(frozen=True, slots=True)
class Run:
    """So many bytes of one tensor that are made alike: by `bits`, or by `whole` in one piece."""

    nbytes: int
    bits: Bits | None = None
    whole: Make | None = None

    def jobs(self, key: str) -> Iterator[tuple[int, Make]]:
        """Sizes of the chunks, and functions that make them; `key` is the run's own."""
        if self.whole is not None:
            yield self.nbytes, self.whole
            return
        assert self.bits is not None
        for offset in range(0, self.nbytes, CHUNK):
            count = min(CHUNK, self.nbytes - offset)
            yield count, partial(self.bits.fill, f"{key}:{offset}", count)


def write_streamed(file: MadeFile, folder: Path, threads: int, on_bytes: Callable[[int], None]) -> str:
    """`file` into `folder`, replacing what is there. Its SHA-256; OSError if the disk says no.

    on_bytes: called with the size of each part that is written and hashed.
    """
    header, size = file.header(), file.size()
    digest = hashlib.sha256(header)
    with appearing(folder / file.name) as out:
        os.posix_fallocate(out.fileno(), 0, size)
        os.pwrite(out.fileno(), header, 0)
        on_bytes(len(header))
        for chunk in _in_order(_chunks(file, out.fileno(), len(header)), min(threads, MOST_THREADS)):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def _in_order(jobs: Iterator[Make], threads: int) -> Iterator[memoryview]:
    """The jobs' results in their order, made by threads that are at most two jobs each ahead."""
    waiting: deque[Future[memoryview]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(file: MadeFile, descriptor: int, start: int) -> Iterator[Make]:
    """Jobs that each make some bytes, write them where they belong and give them back."""
    runs = {name: made for logical in file.shapes for name, made in tensor_runs(file, logical).items()}
    for name in file.layout():
        jobs = (job for number, run in enumerate(runs[name]) for job in run.jobs(f"{file.recipe.seed}:{name}:{number}"))
        for nbytes, make in jobs:
            yield partial(_put, descriptor, start, make)
            start += nbytes


def _put(descriptor: int, start: int, make: Make) -> memoryview:
    made = make()
    done = 0
    while done < len(made):
        done += os.pwrite(descriptor, made[done:], start + done)
    return made


def tensor_runs(file: MadeFile, name: str) -> dict[str, list[Run]]:
    """The stored tensors of the logical tensor `name`, each as its runs."""
    shape = file.shapes[name]
    scheme = file.storage.scheme_of(name, shape)
    if scheme is None:
        return {name: _plain(file, name, shape)}
    layer = name.removesuffix(".weight")
    spread = file.recipe.spread_of(name)
    runs = {f"{layer}.{leaf}": made for leaf, made in _quantised(scheme, shape, spread).items()}
    if scheme.input_scale:
        runs[f"{layer}.input_scale"] = [_constant(torch.tensor(INPUT_SCALE))]
    if scheme.pre_quant:
        scale = pre_quant_scales({layer: shape}, file.recipe.seed)[layer]
        runs[f"{layer}.pre_quant_scale"] = [_constant(scale.to(torch.bfloat16))]
    if file.storage.told_by == "tensors":
        runs[layer + SUFFIX] = [_constant(marker_tensor(scheme.marker()))]
    return runs


def _plain(file: MadeFile, name: str, shape: tuple[int, ...]) -> list[Run]:
    dtype, recipe = file.storage.dtype_of(name), file.recipe
    nbytes = math.prod(shape) * dtype.itemsize
    if math.prod(shape) < STREAMED or recipe.maker_of(name) is not None:
        return [Run(nbytes, whole=lambda: _bytes(recipe.tensor(name, shape).to(dtype)))]
    spread = recipe.spread_of(name)
    assert spread.mean == 0, f"{name} can't be streamed: its numbers aren't about 0"
    std = spread.std_of(shape)
    return [Run(nbytes // len(spread.rows), floats(dtype, std * factor)) for factor in spread.rows]


def _quantised(scheme: Scheme, shape: tuple[int, ...], spread: Spread) -> dict[str, list[Run]]:
    """Weight and scales such that the decoded weight has the spread, rows in groups where it says so."""
    (rows, columns), std = shape, spread.std_of(shape)
    share = rows // len(spread.rows)
    if scheme.format == "nvfp4":
        assert share % 128 == 0 and columns % 64 == 0, "padded scales aren't made here"
        blocks = [positive(torch.float8_e4m3fn, BLOCK_SCALE * factor, BLOCK_SCALE_BINADES) for factor in spread.rows]
        return {
            "weight": [Run(rows * columns // 2, NVFP4_PAIRS)],
            "weight_scale": [Run(share * columns // 16, block) for block in blocks],
            "weight_scale_2": [_constant(torch.tensor(std / (NVFP4_PAIRS.rms * blocks[0].rms)))],
        }
    if scheme.format == "int8_tensorwise":
        scales = [positive(torch.float32, std * factor / INT8_CODES.rms, 1) for factor in spread.rows]
        return {
            "weight": [Run(rows * columns, INT8_CODES)],
            "weight_scale": [Run(share * 4, scale) for scale in scales],
        }
    assert scheme.format == "float8_e4m3fn", f"{scheme.format} isn't a format of a published set"
    codes = [floats(torch.float8_e4m3fn, FP8_CODE * factor) for factor in spread.rows]
    return {
        "weight": [Run(share * columns, code) for code in codes],
        "weight_scale": [_constant(torch.tensor(std / codes[0].rms))],
    }


def _constant(tensor: torch.Tensor) -> Run:
    made = _bytes(tensor)
    return Run(len(made), whole=lambda: made)


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data

"""The CUTLASS product, as far as a machine without Blackwell can look at it: `nvfp4_cutlass.py --arch 121a [--into D]`.

For each architecture: compiles the library (about 75 s and 5.5 GB, so it isn't part of the tests), tells what ptxas
says of its kernel, then asks the library itself, whose answers need no GPU:

    layout     where the kernel looks for the scale of row r, block c, for every r and c of the model's weights and of
               activations of many lengths, held against `quant/tiles.py`
    sizes      that it takes every product of the model at each of those lengths, and refuses what it can't

Prints a table; ends with 1 if anything differs. The compiled files stay in `--into`, a temporary folder without it.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from h3_kernels.cuda_compiler import CudaBuildError, compile_into, library_name
from h3_kernels.nvfp4_cutlass import CAPABILITIES, GEMM

from benchmarks.gemm import SHAPES
from benchmarks.resources import parsed
from h3runtime.quant import tiles
from h3runtime.quant.nvfp4 import BLOCK

ROWS: Final = (1, 15, 16, 17, 127, 128, 129, 4096, 19_400, 37_810, 109_162)
REFUSED: Final = ((128, 5376, 5360), (128, 5380, 5376), (0, 5376, 5376), (128, 5376, 0), (1 << 32, 5376, 5376))
"""M, N and K: no multiple of 32 or of 8, nothing, more rows than 32 bits count."""
ARCHITECTURES: Final = tuple(f"{major}{minor}a" for major, minor in CAPABILITIES)


@dataclass(frozen=True, slots=True)
class Compiled:
    """seconds it took; gigabytes: most that a process of nvcc had; registers, spills in bytes: of its kernel."""

    path: Path
    seconds: float
    gigabytes: float
    registers: int
    spills: int


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    print("| sm | seconds | GB | registers | spills | scales at the same place | products taken | refused |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in given.arch or ARCHITECTURES:
            try:
                line, found = looked_at(architecture, given.into or Path(folder))
            except CudaBuildError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            print(line, flush=True)
            faults += found
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def looked_at(architecture: str, into: Path) -> tuple[str, list[str]]:
    """A line of the table, and what is wrong."""
    made = compiled(architecture, into)
    library = ctypes.CDLL(str(made.path))
    faults = [] if library.h3_nvfp4_gemm_architecture() == int(architecture[:-1]) else [f"{made.path}: another one's"]
    operands = sorted({*SHAPES.values(), *((rows, width) for rows in ROWS for _, width in SHAPES.values())})
    same = sum(_agrees(library, rows, width, faults) for rows, width in operands)
    sizes = [(rows, *shape) for rows in ROWS for shape in SHAPES.values()]
    taken = _taken(library, sizes)
    refused = len(REFUSED) - _taken(library, REFUSED)
    if taken < len(sizes) or refused < len(REFUSED):
        faults.append(f"sm_{architecture}: takes {taken} of {len(sizes)}, refuses {refused} of {len(REFUSED)}")
    cells = [architecture, f"{made.seconds:.0f}", f"{made.gigabytes:.1f}", str(made.registers), str(made.spills)]
    cells += [f"{same:,}", f"{taken} of {len(sizes)}", f"{refused} of {len(REFUSED)}"]
    return "| " + " | ".join(cells) + " |", faults


def compiled(architecture: str, into: Path) -> Compiled:
    path = into / library_name(GEMM, architecture)
    started = time.perf_counter()
    said = compile_into(path, GEMM, architecture, "-Xptxas", "-v")
    seconds = time.perf_counter() - started
    kernel = parsed(said)[0]
    gigabytes = getrusage(RUSAGE_CHILDREN).ru_maxrss / 1e6
    return Compiled(path, seconds, gigabytes, kernel.registers, kernel.spill_stores + kernel.spill_loads)


def _agrees(library: ctypes.CDLL, rows: int, width: int, faults: list[str]) -> int:
    """How many scales of an operand are where `tiles` has them."""
    found = torch.empty(rows, width // BLOCK, dtype=torch.int64)
    code = library.h3_nvfp4_gemm_scale_offsets(
        ctypes.c_int64(rows), ctypes.c_int64(width), ctypes.c_void_p(found.data_ptr())
    )
    same = int((found == stored_offsets(rows, width // BLOCK)).sum())
    if code or same < found.numel():
        faults.append(f"[{rows}, {width}]: {found.numel() - same} scales are elsewhere (error {code})")
    return same


def stored_offsets(rows: int, blocks: int) -> torch.Tensor:
    """int64 [rows, blocks]: where `tiles` puts each scale; digit by digit, since it moves bytes."""
    shape = tiles.tiled_shape(rows, blocks)
    flat = torch.arange(shape[0] * shape[1]).reshape(shape)
    natural = torch.zeros(rows, blocks, dtype=torch.int64)
    for shift in (0, 8, 16, 24):
        digit = tiles.unswizzle(((flat >> shift) & 255).to(torch.uint8), rows, blocks)
        natural += digit.long() << shift
    return natural


def _taken(library: ctypes.CDLL, sizes: Iterable[tuple[int, int, int]]) -> int:
    return sum(library.h3_nvfp4_gemm_can_implement(*map(ctypes.c_int64, size)) == 0 for size in sizes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvfp4_cutlass.py", description="Compile and question the CUTLASS product.")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="Only this one; may be repeated.")
    parser.add_argument("--into", type=Path, metavar="DIR", help="Keep the libraries there.")
    return parser


if __name__ == "__main__":
    sys.exit(main())

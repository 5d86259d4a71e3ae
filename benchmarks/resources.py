"""Compiles the CUDA C++ kernels to machine code for each architecture and tells what each kernel takes of it.

    registers    of a thread
    spills       bytes that a thread stores to and loads from memory for want of registers: none is tolerated, unless
                 `TOLERATED` says why
    shared       bytes of a thread block that are known when it is compiled

Needs nvcc and a C++ compiler, no GPU. Prints a table in Markdown (registers / shared bytes) and, with `--output`,
writes JSON. Exits with 1 where a kernel spills, is missing for an architecture, or doesn't compile.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from h3_kernels.cuda_compiler import OLDEST_NVCC, CudaBuildError, compile_into, find_nvcc
from h3_kernels.cuda_library import KERNELS

WANTED: Final = ("90a", "100a", "120a", "121a")
"""Hopper, where kernels are tried; B200; RTX PRO 6000 and 5090; DGX Spark."""
TOLERATED: Final[dict[tuple[str, str], str]] = {}
"""(kernel as the table names it, architecture) -> why its spills are tolerated."""
AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one kernel for one architecture; bytes."""

    kernel: str
    architecture: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int


ENTRY: Final = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
MEMORY: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED: Final = re.compile(r"Used (\d+) registers([^\n]*)")
SHARED: Final = re.compile(r"(\d+) bytes smem")


def parsed(told: str) -> list[Resources]:
    """What ptxas -v told, kernel by kernel; functions that a kernel calls and that aren't inlined count with it."""
    entries = list(ENTRY.finditer(told))
    kernels = demangled([entry[1] for entry in entries])
    ends = [*(entry.start() for entry in entries[1:]), len(told)]
    return [
        _of_one(kernel, entry[2], told[entry.end() : end])
        for kernel, entry, end in zip(kernels, entries, ends, strict=True)
    ]


def _of_one(kernel: str, architecture: str, told: str) -> Resources:
    memory = [[int(number) for number in found.groups()] for found in MEMORY.finditer(told)]
    used = USED.search(told)
    if used is None or not memory:
        raise CudaBuildError(f"ptxas told nothing of what {kernel} takes on sm_{architecture}:\n{told}")
    stack, stores, loads = (sum(column) for column in zip(*memory, strict=True))
    shared = SHARED.search(used[2])
    return Resources(kernel, architecture, int(used[1]), stores, loads, stack, int(shared[1]) if shared else 0)


def demangled(names: Sequence[str]) -> list[str]:
    """Names with their template arguments, without parameters; as they are where there is no c++filt."""
    if shutil.which("c++filt") is None or not names:
        return list(names)
    run = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return [_short(name) for name in run.stdout.splitlines()]


def _short(name: str) -> str:
    """`void (anonymous namespace)::pack<__half>(__half const*, long)` -> `pack<__half>`."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def compiled(architecture: str) -> list[Resources]:
    """Of every kernel for that architecture. Raises CudaBuildError."""
    with tempfile.TemporaryDirectory() as folder:
        told = compile_into(Path(folder) / "kernels.so", KERNELS, architecture, "-Xptxas", "-v")
    found = parsed(told)
    if {one.architecture for one in found} != {architecture}:
        raise CudaBuildError(f"nothing was compiled for sm_{architecture}:\n{told}")
    return found


def faults(rows: Sequence[Resources], architectures: Sequence[str]) -> list[str]:
    """What must not be: spills, and kernels that an architecture lacks."""
    lacking = [
        f"{kernel} isn't there for sm_{architecture}"
        for kernel in sorted({row.kernel for row in rows})
        for architecture in architectures
        if not any(row.kernel == kernel and row.architecture == architecture for row in rows)
    ]
    spilling = [
        f"{row.kernel} spills on sm_{row.architecture}: {row.spill_stores} bytes stored, {row.spill_loads} loaded"
        for row in rows
        if row.spill_stores + row.spill_loads and (row.kernel, row.architecture) not in TOLERATED
    ]
    return lacking + spilling


def table(rows: Sequence[Resources], architectures: Sequence[str]) -> str:
    """Registers / shared bytes of each kernel, an architecture a column; spills, if any, as `+spill`."""
    by = {(row.kernel, row.architecture): row for row in rows}
    lines = ["| kernel | " + " | ".join(f"sm_{one}" for one in architectures) + " |"]
    lines.append("|" + "---|" * (len(architectures) + 1))
    for kernel in sorted({row.kernel for row in rows}):
        cells = [_cell(by.get((kernel, one))) for one in architectures]
        lines.append(f"| `{kernel}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Resources | None) -> str:
    if row is None:
        return "missing"
    spill = f" +{row.spill_stores + row.spill_loads} spilled" if row.spill_stores + row.spill_loads else ""
    return f"{row.registers} / {row.shared}{spill}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="resources.py", description="Compile the CUDA kernels; tell what they take.")
    parser.add_argument("--arch", action="append", choices=sorted(OLDEST_NVCC), help=f"Default: {', '.join(WANTED)}.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    given = parser.parse_args(arguments)
    architectures = given.arch or list(WANTED)
    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rows = [row for found in pool.map(compiled, architectures) for row in found]
    except CudaBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    nvcc = find_nvcc()
    build = nvcc.build if nvcc else ""
    print(table(rows, architectures))
    print(f"\nregisters / shared bytes; nvcc {build}, {time.perf_counter() - began:.0f} s")
    if given.output is not None:
        given.output.write_text(json.dumps({"nvcc": build, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    wrong = faults(rows, architectures)
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

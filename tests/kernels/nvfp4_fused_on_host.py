"""The CUDA C++ of the producers that end in NVFP4, compiled for the host: every index, barrier and rounding of theirs.

The sources are taken as they are but for three things: launches become loops over thread blocks, shared memory of a
size known at launch is one array, and functions that hold one GPU instruction get a body in C++ (`BODIES`). Of those,
what a GPU approximates is here the rounded result. A function that is gone or new with an instruction is an error.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from h3_kernels.cuda_library import KERNELS

BODIES: Final = {
    "mul_ftz": "return a * b;",
    "mul_abs_ftz": "return fabsf(a) * b;",
    "mul_sat": "return saturated(a * b);",
    "fma_sat": "return saturated(fmaf(a, b, c));",
    "min_ftz": "return fminf(a, b);",
    "reciprocal": "return 1.0f / a;",
    "max": "return of_halves(a, b, fmaxf);",
    "max_nan": "return of_halves(a, b, ::max_nan);",
    "larger_nan": "return of_halves(a & 0x7fff7fff, b & 0x7fff7fff, ::max_nan);",
    "larger_number": "return of_halves(a & 0x7fff7fff, b & 0x7fff7fff, fmaxf);",
    "smaller_nan": "return of_halves(a & 0x7fff7fff, b & 0x7fff7fff, ::min_nan);",
    "add_bf16x2": "return of_halves(a, b, __fadd_rn);",
    "mul_bf16x2": "return of_halves(a, b, __fmul_rn);",
    "rounded": "return bf16_bits(low) | bf16_bits(high) << 16;",
    "inverse_root": "return 1.0f / sqrtf(sum_of_squares / static_cast<float>(width) + eps);",
    "one_plus_exp_minus": "return 1.0f + static_cast<float>(exp(-static_cast<double>(x)));",
    "read16_once": "return *static_cast<const uint4*>(from);",
    "block_scale": """
        const uint16_t code = e4m3_code(min_ftz(mul_ftz(mul_ftz(amax, kSixth), tensor_rcp), kLargestE4m3));
        return {code, min_ftz(reciprocal(mul_ftz(tensor_scale, e4m3_value(code))), kLargestFloat)};""",
}
HEADERS: Final = ("nvfp4_block.cuh", "bf16_producers.cuh", "nvfp4_tiles.cuh")
UNITS: Final = {"nvfp4_fused_norm.cu": "h3_nvfp4_norm_modulate", "nvfp4_fused_swiglu.cu": "h3_nvfp4_swiglu"}
"""A library each, with its launcher."""
FINISH: Final = """
extern "C" int h3_nvfp4_finish_scale(const void* partials, int64_t count, void* scale, cudaStream_t) {
    const float* from = static_cast<const float*>(partials);
    *static_cast<float*>(scale) = *std::max_element(from, from + count) * (1.0f / 2688.0f);
    return 0;
}
"""


def compiled(into: Path) -> SimpleNamespace:
    """The launchers of `UNITS`, on memory of the host. Raises CalledProcessError where g++ can't compile it."""
    headers = "".join(without_instructions(read(name)) for name in HEADERS)
    flags = ["-O1", "-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
    found = {}
    for name, launcher in UNITS.items():
        unit = into / f"{name}.cpp"
        unit.write_text(f'#include "cuda_on_host.h"\n{headers}{with_loops(read(name))}{FINISH}')
        library = unit.with_suffix(".so")
        subprocess.run(["g++", *flags, f"-I{Path(__file__).parent}", "-o", library, unit], check=True)
        found[launcher] = getattr(ctypes.CDLL(str(library)), launcher)
    return SimpleNamespace(**found)


def read(name: str) -> str:
    """A source without what it includes."""
    return re.sub(r"^#(include|pragma) .*$", "", (KERNELS.folder / name).read_text(), flags=re.MULTILINE)


def without_instructions(source: str) -> str:
    """Every function with an instruction gets its body of `BODIES`; those of GPUs and types not asked for go unused."""
    source = re.sub(r"#if defined\(__CUDA_ARCH__\)(?:.*?#else)?(.*?)#endif", _for_no_gpu, source, flags=re.DOTALL)
    pieces, at = [], 0
    for head in re.finditer(r"\b(\w+)\([^()]*\) \{", source):
        if head.start() < at:
            continue
        end = _end_of_body(source, head.end())
        if "asm" in source[head.end() : end]:
            pieces += [source[at : head.end()], BODIES[head[1]], "}"]
            at = end
    return "".join(pieces) + source[at:]


def _for_no_gpu(choice: re.Match[str]) -> str:
    """Of a choice by architecture what is behind #else, if there is."""
    return choice[1] if "#else" in choice[0] else ""


def _end_of_body(source: str, begin: int) -> int:
    """Behind the brace that closes what was opened just before `begin`."""
    depth, at = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return at


def with_loops(source: str) -> str:
    source = re.sub(r"extern __shared__ \S+ uint8_t (\w+)\[\];", r"uint8_t* \1 = dynamic_shared;", source)
    launch = r"(\w+<[^;]*?>)\s*<<<([^,]+), ([^,]+), [^>]*>>>\s*\((.*?)\);"
    return re.sub(launch, r"run_blocks(\2, \3, [=] { \1(\4); });", source, flags=re.DOTALL)

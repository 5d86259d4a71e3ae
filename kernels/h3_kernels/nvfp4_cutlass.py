"""NVFP4 times NVFP4 by our own CUTLASS kernel: `cutlass/nvfp4_gemm.cu`, compiled where CUTLASS's headers are.

    y = bf16(alpha * a w^T)        a, w of E2M1 codes with E4M3 scales in tiles, sums in FP32, alpha on the device

SM 10.0, 10.3, 12.0 and 12.1. No such GPU was at hand: it compiles for each, it was never run. Codes are read in the
order they are stored in, since both operands have the same. `cuda_library` finds, compiles and loads; one architecture
takes about 75 s and 5.5 GB, so an image has it prebuilt:

    python -m h3_kernels.nvfp4_cutlass --arch 121a --into /opt/h3/kernels

`backends.linear.nvfp4_cutlass` asks `why_unavailable` and calls `product`.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Final

import torch

from h3_kernels import cuda_library
from h3_kernels.cuda_compiler import Headers, Sources

CAPABILITIES: Final = ((10, 0), (10, 3), (12, 0), (12, 1))
HEADERS: Final = Headers(
    "CUTLASS", "cutlass_library", "source/include", "cutlass/cutlass.h", "pip install --no-deps nvidia-cutlass==4.2.0.0"
)
GEMM: Final = Sources("h3_nvfp4_gemm", Path(__file__).parent / "cutlass", ("-DNDEBUG",), HEADERS)


def why_unavailable(capability: tuple[int, int] | None) -> str | None:
    """As `cuda_library.why_unavailable`: None where the library is there or could be made; compiles nothing."""
    if capability is not None and capability not in CAPABILITIES:
        named = ", ".join(f"{major}.{minor}" for major, minor in CAPABILITIES)
        return f"needs SM {named}, and this is SM {capability[0]}.{capability[1]}"
    return cuda_library.why_unavailable(capability, GEMM)


def load(device: torch.device) -> None:
    """So that the first product doesn't compile; raises `CudaBuildError`."""
    cuda_library.library(device, GEMM)


def product(
    codes: torch.Tensor,
    block_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    alpha: torch.Tensor,
    rows: int,
) -> torch.Tensor:
    """bf16 [rows, N] of the first `rows` rows of codes uint8 [M, K/2] and of weight uint8 [N, K/2].

    block_scale, weight_scale: E4M3 [ru(M, 128), ru(K/16, 4)] and of N, in tiles; alpha: fp32 [], both tensor scales
    multiplied. K in multiples of 32, N of 8. The host waits for nothing. Raises RuntimeError for what can't be.
    """
    device, out_width, width = codes.device, weight.shape[0], weight.shape[1] * 2
    y = torch.empty(rows, out_width, dtype=torch.bfloat16, device=device)
    taken = workspace_bytes(device, rows, out_width, width)
    workspace = torch.empty(taken, dtype=torch.uint8, device=device) if taken else None
    operands = (codes, block_scale, weight, weight_scale, alpha, y)
    cuda_library.launch("h3_nvfp4_gemm_run", device, *operands, workspace, rows, out_width, width, sources=GEMM)
    return y


@cache
def workspace_bytes(device: torch.device, rows: int, out_width: int, width: int) -> int:
    """That a product of these sizes takes beside its operands and its result."""
    found = ctypes.c_int64()
    with torch.cuda.device(device):
        ask = cuda_library.library(device, GEMM).h3_nvfp4_gemm_workspace_bytes
        code = ask(*map(ctypes.c_int64, (rows, out_width, width)), ctypes.byref(found))
    if code:
        raise RuntimeError(f"no product of [{rows}, {width}] and [{out_width}, {width}]: CUDA error {code}")
    return found.value


if __name__ == "__main__":
    sys.exit(cuda_library.main(sources=GEMM, module="nvfp4_cutlass"))

"""cuBLASLt's C interface as ctypes sees it: numbers, structures, functions, and its errors with their names.

Nothing is compiled and no header is needed where this runs: the interface is C, its numbers are part of the library's
ABI within a major version and beyond, and the library itself is the one that PyTorch loaded, so a process never has two
of different versions. Which library that is, `loaded` finds out; what is done with it, `cublaslt` knows.

Source of every number: `cublasLt.h`, `cublas_api.h` and `library_types.h` of cuBLAS 13.1.0 (PyPI nvidia-cublas
13.1.0.3, what torch 2.11 for CUDA 13.0 requires).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, Final

CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_4F_E2M1 = 0, 2, 14, 28, 33
"""cudaDataType_t. A scale of `VEC16_UE4M3` has the bytes of E4M3."""
COMPUTE_32F: Final = 68
OP_N, OP_T = 0, 1
SCALAR_32F, VEC16_UE4M3 = 0, 1
"""cublasLtMatmulMatrixScale_t: one number a matrix, or one E4M3 for every 16 values along K, in tiles of 128 x 4."""
POINTER_MODE_DEVICE: Final = 1
POINTER_MODE_MASK_DEVICE: Final = 2
EPILOGUE_DEFAULT: Final = 1
REDUCTION_SCHEME_NONE: Final = 0

LAYOUT_TYPE, LAYOUT_ROWS, LAYOUT_COLS, LAYOUT_LD = 0, 2, 3, 4
DESC_COMPUTE_TYPE, DESC_SCALE_TYPE, DESC_POINTER_MODE, DESC_TRANSA, DESC_TRANSB = 0, 1, 2, 3, 4
DESC_EPILOGUE, DESC_A_SCALE_POINTER, DESC_B_SCALE_POINTER = 7, 17, 18
DESC_A_SCALE_MODE, DESC_B_SCALE_MODE = 31, 32
PREF_MAX_WORKSPACE_BYTES: Final = 1
CAP_TILE_IDS, CAP_POINTER_MODE_MASK, CAP_STAGES_IDS = 6, 11, 13
CONFIG_ID, CONFIG_TILE_ID, CONFIG_SPLITK_NUM, CONFIG_REDUCTION_SCHEME, CONFIG_STAGES_ID = 0, 1, 2, 3, 6
TILE_128X128, STAGES_256XAUTO, STAGES_768XAUTO = 20, 37, 38

SUCCESS, NOT_SUPPORTED = 0, 15
STATUS: Final = {
    0: "CUBLAS_STATUS_SUCCESS",
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}
SONAMES: Final = ("libcublasLt.so.13", "libcublasLt.so.12")
"""Newest first; 12 has the block scales from 12.8 on."""


class Algorithm(Structure):
    """cublasLtMatmulAlgo_t: 64 bytes that only the library reads."""

    _fields_ = (("data", c_uint64 * 8),)


class Heuristic(Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasLtError(RuntimeError):
    """call: the function that failed. status: what it returned. name: cuBLAS's name for that."""

    def __init__(self, call: str, status: int) -> None:
        self.call, self.status = call, status
        self.name = STATUS.get(status, f"status {status}")
        super().__init__(f"{call}: {self.name}")


class CublasLtNotSupported(CublasLtError):
    """The library has nothing for such a product on this device."""


_HANDLE: Final = c_void_p
_FIVE = (_HANDLE, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
"""Handle, descriptor, and the layouts of A, B, C and D."""
_TYPES = (c_int, c_int, c_int, c_int, c_int, c_int)
"""Compute type, scale type, and the types of A, B, C and D."""
_MATMUL: Final[tuple[Any, ...]] = (
    *(_HANDLE, c_void_p, c_void_p),
    *(c_void_p, c_void_p, c_void_p, c_void_p),
    *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    *(POINTER(Algorithm), c_void_p, c_size_t, c_void_p),
)
"""Handle, descriptor, alpha; A, its layout, B, its layout; beta, C, its layout, D, its layout; algorithm, workspace,
its bytes, stream."""
FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "cublasLtCreate": (POINTER(_HANDLE),),
    "cublasLtDestroy": (_HANDLE,),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulDescGetAttribute": (c_void_p, c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*_FIVE, c_void_p, c_int, POINTER(Heuristic), POINTER(c_int)),
    "cublasLtMatmulAlgoGetIds": (_HANDLE, *_TYPES, c_int, POINTER(c_int), POINTER(c_int)),
    "cublasLtMatmulAlgoInit": (_HANDLE, *_TYPES, c_int, POINTER(Algorithm)),
    "cublasLtMatmulAlgoCheck": (*_FIVE, POINTER(Algorithm), POINTER(Heuristic)),
    "cublasLtMatmulAlgoCapGetAttribute": (POINTER(Algorithm), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmulAlgoConfigSetAttribute": (POINTER(Algorithm), c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoConfigGetAttribute": (POINTER(Algorithm), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmul": _MATMUL,
}
"""All that is called, with what each takes; every one returns a cublasStatus_t."""


class Library:
    """A loaded libcublasLt. Each function of `FUNCTIONS` is called by `call`, which raises what isn't a success.

    version: 130100 for 13.1.0. path: what it was loaded by. Raises OSError for a file that isn't there, AttributeError
    for one that lacks a function.
    """

    def __init__(self, path: str, mode: int = os.RTLD_LAZY) -> None:
        self.path = path
        self.raw = ctypes.CDLL(path, mode=mode)
        self.raw.cublasLtGetVersion.restype = c_size_t
        self.raw.cublasLtGetVersion.argtypes = []
        self.functions = {name: self._declared(name, taken) for name, taken in FUNCTIONS.items()}
        self.version = int(self.raw.cublasLtGetVersion())

    def _declared(self, name: str, taken: Sequence[Any]) -> Any:
        function = getattr(self.raw, name)
        function.restype, function.argtypes = c_int, list(taken)
        return function

    def call(self, name: str, *arguments: Any) -> None:
        """CublasLtNotSupported or CublasLtError for any other status than success."""
        status = self.functions[name](*arguments)
        if status != SUCCESS:
            raise (CublasLtNotSupported if status == NOT_SUPPORTED else CublasLtError)(name, status)


@cache
def loaded() -> Library | None:
    """The libcublasLt that is in this process already, as PyTorch for CUDA has it once it was imported; None without
    one. Its major versions differ in their names, so two of them can't be taken for each other."""
    for name in SONAMES:
        with suppress(OSError):
            return Library(name, os.RTLD_NOLOAD | os.RTLD_LAZY)
    return None


def told(version: int) -> str:
    """130100 -> `13.1.0`."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"

"""The library of the CUTLASS product, played on the host: its functions take the C types that its header declares.

It reads its operands from the addresses it is given: two codes in a byte, low nibble first, as the hardware does, and
each scale where checkpoint-formats §3 says. Sums are exact, in FP64.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from h3_kernels import cuda_library, nvfp4_cutlass
from h3_kernels.cuda_compiler import Sources
from h3_kernels.nvfp4_cutlass import GEMM

CPU = torch.device("cpu")
STREAM = 0x5EED
INVALID = 1
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def prototypes() -> dict[str, list[str]]:
    """Of the header, by function: its arguments' types."""
    text = re.sub(r"//.*", "", (GEMM.folder / "nvfp4_gemm.cuh").read_text())
    found = re.findall(r"int (h3_\w+)\(([^)]*)\);", text)
    return {
        name: [re.sub(r"\s*\w+$", "", one.strip()) for one in arguments.split(",") if one.strip() != "void"]
        for name, arguments in found
    }


def as_declared(name: str, work: Callable[..., int]) -> Any:
    """`work` with the C types that the header gives to `name`."""
    types = [ctypes.c_int64 if one == "int64_t" else ctypes.c_void_p for one in prototypes()[name]]
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(work)


class Library:
    """Functions of the header for ctypes, on memory of the host."""

    def __init__(self, workspace: int = 0) -> None:
        self.workspace, self.runs = workspace, 0
        self.h3_nvfp4_gemm_run = as_declared("h3_nvfp4_gemm_run", self._run)
        self.h3_nvfp4_gemm_workspace_bytes = as_declared("h3_nvfp4_gemm_workspace_bytes", self._workspace_bytes)

    def _can_implement(self, m: int, n: int, k: int) -> int:
        return 0 if m > 0 and n > 0 and k > 0 and n % 8 == 0 and k % 32 == 0 else INVALID

    def _workspace_bytes(self, m: int, n: int, k: int, into: int) -> int:
        ctypes.c_int64.from_address(into).value = self.workspace
        return self._can_implement(m, n, k)

    def _run(
        self,
        a: int,
        a_scale: int,
        b: int,
        b_scale: int,
        alpha: int,
        d: int,
        workspace: int | None,
        m: int,
        n: int,
        k: int,
        stream: int,
    ) -> int:
        if stream != STREAM or (workspace is None) != (self.workspace == 0) or self._can_implement(m, n, k):
            return INVALID
        self.runs += 1
        sums = operand(a, a_scale, m, k) @ operand(b, b_scale, n, k).T
        y = (sums * ctypes.c_float.from_address(alpha).value).float().bfloat16().view(torch.int16).numpy().tobytes()
        ctypes.memmove(d, y, len(y))
        return 0


def operand(codes: int, scales: int, rows: int, width: int) -> torch.Tensor:
    """fp64 [rows, width] from bytes at two addresses: low nibble first, scales where checkpoint-formats §3 says."""
    pairs = torch.frombuffer(bytearray(ctypes.string_at(codes, rows * width // 2)), dtype=torch.uint8).int()
    values = torch.stack([VALUES[(pairs & 15).long()], VALUES[(pairs >> 4).long()]], dim=1).reshape(rows, -1, 16)
    tiles_across = -(-width // 64)
    stored = torch.frombuffer(
        bytearray(ctypes.string_at(scales, -(-rows // 128) * tiles_across * 512)), dtype=torch.float8_e4m3fn
    )
    r, c = torch.arange(rows)[:, None], torch.arange(width // 16)[None]
    offsets = ((r // 128) * tiles_across + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    scale = stored.float()[offsets]
    return (values * scale[..., None]).reshape(rows, width).double()


def installed(monkeypatch: pytest.MonkeyPatch) -> Library:
    """In the place of the compiled library, for tensors on the CPU."""
    made = Library()

    def found(device: torch.device, sources: Sources) -> Any:
        assert device == CPU and sources is GEMM
        return made

    monkeypatch.setattr(cuda_library, "library", found)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=STREAM))
    nvfp4_cutlass.workspace_bytes.cache_clear()
    return made

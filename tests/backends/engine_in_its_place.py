"""Transformer Engine's NVFP4 product, played on the CPU: it reads a tensor as the library's source says, and checks it.

From `transformer_engine` 2.12 to 2.18 (pytorch/tensor/storage/nvfp4_tensor_storage.py, csrc/type_converters.cpp,
common/transformer_engine.cpp, common/gemm/cublaslt_gemm.cu, common/recipe/nvfp4.cu): two codes in a byte, the even
column in the LOW nibble; scales of the shape [ru(rows, 128), ru(K/16, 4)], in tiles where the tensor says so; alpha is
amax_A * amax_B * (1 / (6 * 6 * 448 * 448)) in FP32. Sums are exact here, in FP64.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
FP4 = "kFloat4E2M1"


class NVFP4TensorStorage:
    """With the arguments of 2.12, and those that later releases added at their defaults."""

    def __new__(
        cls,
        rowwise_data: torch.Tensor | None,
        rowwise_scale_inv: torch.Tensor | None,
        columnwise_data: torch.Tensor | None,
        columnwise_scale_inv: torch.Tensor | None,
        amax_rowwise: torch.Tensor | None,
        amax_columnwise: torch.Tensor | None,
        fp4_dtype: str,
        quantizer: None,
        with_gemm_swizzled_scales: bool,
    ) -> NVFP4TensorStorage:
        assert columnwise_data is None and columnwise_scale_inv is None and amax_columnwise is None
        assert fp4_dtype == FP4 and quantizer is None
        made = super().__new__(cls)
        made.data, made.scale, made.amax = rowwise_data, rowwise_scale_inv, amax_rowwise
        made.tiled = with_gemm_swizzled_scales
        return made

    data: Any
    scale: Any
    amax: Any
    tiled: bool

    def unscaled(self) -> torch.Tensor:
        """fp64 [rows, K]: code times block scale."""
        data, scale, amax = self.data, self.scale, self.amax
        assert data.dtype is torch.uint8 and data.is_contiguous() and data.dim() == 2
        assert scale.dtype is torch.uint8 and scale.is_contiguous()
        assert amax.dtype is torch.float32 and amax.shape == (1,)
        rows, blocks = data.shape[0], data.shape[1] // 8
        assert scale.shape == (-(-rows // 128) * 128, -(-blocks // 4) * 4), "invalid scale_inv shape"
        r, c = torch.arange(rows)[:, None], torch.arange(blocks)[None]
        across = scale.shape[1] // 4
        tiled = ((r // 128) * across + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
        offsets = tiled if self.tiled else r * scale.shape[1] + c
        factor = scale.view(torch.float8_e4m3fn).flatten()[offsets].double()
        codes = torch.stack([data & 15, data >> 4], dim=2).long()
        return (VALUES[codes].reshape(rows, blocks, 16) * factor[..., None]).flatten(1)


class Engine:
    """asked: M, N and K of each product."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def general_gemm(
        self, a: NVFP4TensorStorage, b: NVFP4TensorStorage, out_dtype: torch.dtype, layout: str = "TN"
    ) -> tuple[torch.Tensor, None, None, None]:
        """D [rows of B, rows of A] = alpha B A^T; a bias, a gradient's and what GELU read aren't asked for."""
        assert layout == "TN"
        left, right = a.unscaled(), b.unscaled()
        (n, k), m = left.shape, right.shape[0]
        assert k == right.shape[1] and k % 32 == 0 and n % 8 == 0, "no such product (cuBLAS, tensor cores)"
        self.asked.append((m, n, k))
        factor = torch.tensor(1.0 / (6.0 * 6.0 * 448.0 * 448.0), dtype=torch.float32)
        alpha = (a.amax * b.amax) * factor
        return ((right @ left.T) * alpha.double()).to(out_dtype), None, None, None


def installed(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Let the imports find it."""
    engine = Engine()
    package = "transformer_engine"
    storage = f"{package}.pytorch.tensor.storage.nvfp4_tensor_storage"
    parts: dict[str, dict[str, Any]] = {
        package: {},
        f"{package}.pytorch": {},
        f"{package}.pytorch.cpp_extensions": {"general_gemm": engine.general_gemm},
        f"{package}.pytorch.tensor": {},
        f"{package}.pytorch.tensor.storage": {},
        storage: {"NVFP4TensorStorage": NVFP4TensorStorage},
        f"{package}_torch": {"DType": SimpleNamespace(kFloat4E2M1=FP4)},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    return engine

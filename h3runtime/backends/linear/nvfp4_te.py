"""NVFP4 times NVFP4 (W4A4) by Transformer Engine: its `general_gemm` on the bytes that we have, requantising nothing.

    rowwise_data       uint8 [M, K/2]                        the stored codes, and ours of the activation
    rowwise_scale_inv  uint8 [ru(M, 128), ru(K/16, 4)]       in tiles as stored: `with_gemm_swizzled_scales`
    amax_rowwise       fp32 [1]                              tensor scale * 448 * 6
    alpha              amax_x amax_w / (448 * 6)^2           on the device, multiplies FP32 sums before they are rounded

Transformer Engine has the even column in the LOW nibble and files have it in the high one. Nothing is swapped: both
operands have the same order, which pairs the same codes of the same blocks; only reading such a tensor back would need
it. Its own quantizer isn't used: it rounds by an amax of its own and takes rows in multiples of 16, so results would be
those of no other `nvfp4` backend; nor are its recipe's rotation (RHT), 2-D scales and stochastic rounding, made for
training. Its alpha differs from the product of both scales in FP32's last places, since both amax are rounded.

From 2.12 on, where scales in tiles are taken as they are. Never run by us, since no such GPU was at hand: what it is
handed is tested against what its source says it reads. The definition is `nvfp4_emulated`. Fed and read as `nvfp4_base`
says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from h3runtime.backends.linear.base import CallBytes
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase
from h3runtime.quant.nvfp4 import E2M1_MAX, E4M3_MAX
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight

PACKAGE, COMPILED = "transformer_engine", "transformer_engine_torch"
OLDEST = (2, 12)
"""The first release whose NVFP4 tensors say that their scales are in tiles already."""
SMALLEST_CAPABILITY = (10, 0)
OLDEST_CUDA = (12, 8)
"""Whose cuBLAS multiplies FP4."""
WORKSPACE_BYTES = (32 << 20) + 1024
"""That Transformer Engine keeps for cuBLAS from its first product on (`get_cublas_workspace_size_bytes`)."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """version: of the package, None without it, "" if it tells none. compiled: with its part for PyTorch."""

    version: str | None = None
    compiled: bool = False

    def why_not(self) -> str | None:
        wanted = ".".join(map(str, OLDEST))
        if self.version is None:
            return "Transformer Engine (transformer-engine) is not installed"
        found = re.match(r"(\d+)\.(\d+)", self.version)
        if found is None or (int(found[1]), int(found[2])) < OLDEST:
            return f"needs Transformer Engine {wanted} or newer, and this is {self.version or 'of no known version'}"
        return (
            None if self.compiled else f"Transformer Engine {self.version} was installed without its part for PyTorch"
        )


def engine_facts() -> EngineFacts:
    """Of this machine; imports nothing."""
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        return EngineFacts()
    folder = Path(package.submodule_search_locations[0])
    compiled = any(any(place.glob(f"{COMPILED}*.so")) for place in (folder, folder / "wheel_lib", folder.parent))
    try:
        return EngineFacts(version("transformer-engine"), compiled)
    except PackageNotFoundError:
        return EngineFacts("", compiled)


class Nvfp4TeLinear(Nvfp4LinearBase):
    name = "nvfp4_te"
    note = "was never run by us; what it hands to Transformer Engine is tested"

    def why_unavailable(self, device: torch.device) -> str | None:
        facts = linear_facts(device)
        return self.why_not(facts, engine_facts()) or self.why_unpacked(facts)

    def why_not(self, facts: LinearFacts, engine: EngineFacts) -> str | None:
        if (why := facts.why_older_than(SMALLEST_CAPABILITY) or engine.why_not()) is not None:
            return why
        if facts.cuda is None or facts.cuda < OLDEST_CUDA:
            return "FP4 products need CUDA 12.8 or newer, which torch wasn't built for"
        return None

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """With the library's workspace, which is there from the first call on."""
        found = super().call_bytes(resident, rows, dtype)
        return found if self.why_unfit(resident) is not None else replace(found, held=found.held + WORKSPACE_BYTES)

    def came_bytes(self, resident: Any, rows: int) -> CallBytes:
        found = super().came_bytes(resident, rows)
        return replace(found, held=found.held + WORKSPACE_BYTES)

    def product(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        from transformer_engine.pytorch.cpp_extensions import general_gemm

        left = wrapped(weight.codes, weight.block_scale, weight.tensor_scale)
        right = wrapped(rows.codes, rows.block_scale, rows.tensor_scale)
        y: torch.Tensor = general_gemm(left, right, out_dtype=rows.dtype, layout="TN")[0]
        return y[: rows.rows, : weight.shape[0]]


def wrapped(codes: torch.Tensor, block_scale: torch.Tensor, tensor_scale: torch.Tensor) -> Any:
    """Codes and scales as Transformer Engine's tensor; nothing of them is copied, only the tensor's amax is made."""
    import transformer_engine.pytorch  # noqa: F401  (loads the module of the next line)
    import transformer_engine_torch
    from transformer_engine.pytorch.tensor.storage.nvfp4_tensor_storage import NVFP4TensorStorage

    return NVFP4TensorStorage(
        rowwise_data=codes,
        rowwise_scale_inv=block_scale.view(torch.uint8),
        columnwise_data=None,
        columnwise_scale_inv=None,
        amax_rowwise=tensor_scale.reshape(1).float() * (E4M3_MAX * E2M1_MAX),
        amax_columnwise=None,
        fp4_dtype=transformer_engine_torch.DType.kFloat4E2M1,
        quantizer=None,
        with_gemm_swizzled_scales=True,
    )

"""Packing an activation into NVFP4 for a W4A4 product, by whom `H3_NVFP4_SCALE_BACKEND` names.

    kitchen         amax by PyTorch, codes by comfy-kitchen's CUDA packer, which wants rows in multiples of 16: zeros
    vortex          amax by our own kernel, codes by comfy-kitchen's
    vortex_native   both by our own kernels; rows as they are

All three give the same bytes (`tests/gpu/test_nvfp4_packer.py`). Off a CUDA device, and on one for which comfy-kitchen
has no CUDA part, it is `quant.nvfp4`, whose IEEE quotients may round a tie of a value and its scale otherwise. Read by
the linears of NVFP4 weights, and by whoever asks why a packer can't be had.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

import torch

from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows

ScaleBackend = Literal["kitchen", "vortex", "vortex_native"]
KITCHEN_ROWS: Final = 16
"""Rows that comfy-kitchen's packer and its product take at a time (checkpoint-formats §3)."""
PACKED: Final = (torch.bfloat16, torch.float16)
"""What kernels pack."""


@dataclass(slots=True)
class Packings:
    """How often activations were packed for a product since the start. by: who packed them, `kitchen` and its like;
    `definition`, where no kernel did. came: packed by a producer."""

    by: Counter[str] = field(default_factory=Counter)
    came: int = 0

    def look(self) -> Packings:
        return Packings(Counter(self.by), self.came)

    def since(self, before: Packings) -> Packings:
        return Packings(self.by - before.by, self.came - before.came)

    def add(self, more: Packings) -> None:
        """What a recorded forward packs without the host."""
        self.by += more.by
        self.came += more.came

    def put_back(self, before: Packings) -> None:
        self.by, self.came = Counter(before.by), before.came


@dataclass(frozen=True, slots=True)
class Nvfp4Form:
    """As a W4A4 product reads an activation. scale: fp32, of the file; None: the activation's own. by: who packs."""

    scale: torch.Tensor | None = None
    by: ScaleBackend = "kitchen"

    @property
    def tensor_scale(self) -> torch.Tensor | None:
        """fp32 [], as a kernel takes it."""
        return None if self.scale is None else self.scale.reshape(()).float()


def why_no_packer(by: ScaleBackend, facts: LinearFacts) -> str | None:
    """Why `by` can't pack on a CUDA device of these facts; nothing is compiled to say it."""
    if by != "vortex_native" and (why := facts.why_no_kitchen()) is not None:
        return why
    return None if by == "kitchen" else why_no_kernels(facts)


def why_no_kernels(facts: LinearFacts) -> str | None:
    """Why our own CUDA kernels can't run on a device of these facts."""
    if facts.kind != "cuda":
        return f"needs a CUDA device, and this is {facts.kind}"
    from h3_kernels import cuda_library

    return cuda_library.why_unavailable(facts.capability)


def packed(x: torch.Tensor, stored_scale: torch.Tensor | None, by: ScaleBackend = "kitchen") -> Nvfp4Rows:
    """x [M, K] -> the same in NVFP4; stored_scale: fp32, of activations; None: x's own. Of a view into wider rows
    kernels may read a copy, which is gone afterwards."""
    there = has_packer(x, by)
    # Our packer takes rows that lie apart; what looks for their scale doesn't.
    rows = x if not there or (by == "vortex_native" and stored_scale is not None) else x.contiguous()
    scale = found_scale(rows, by) if stored_scale is None else stored_scale.reshape(()).float()
    if not there:
        return nvfp4.pack_rows(rows, scale)
    return _by_own(rows, scale) if by == "vortex_native" else _by_kitchen(rows, scale)


def found_scale(x: torch.Tensor, by: ScaleBackend = "kitchen") -> torch.Tensor:
    """amax / (448 * 6) of all of x, fp32 []. 0 where x is: then every packer gives codes 0, and the product is 0."""
    if by == "kitchen" or x.device.type != "cuda" or x.dtype not in PACKED or x.shape[-1] % nvfp4.BLOCK:
        return nvfp4.activation_scale(x)
    from h3_kernels import nvfp4 as own

    return own.tensor_scale(x)


def has_packer(x: torch.Tensor, by: ScaleBackend) -> bool:
    """Whether a kernel packs x [M, K]."""
    return packs_there(x.device, x.dtype, x.shape[-1], by)


def packs_there(device: torch.device, dtype: torch.dtype, width: int, by: ScaleBackend) -> bool:
    """Whether a kernel packs rows of so many values on that device."""
    if device.type != "cuda" or dtype not in PACKED:
        return False
    if by == "vortex_native":
        return width % nvfp4.BLOCK == 0
    return linear_facts(device).why_no_kitchen() is None


def _by_own(x: torch.Tensor, scale: torch.Tensor) -> Nvfp4Rows:
    from h3_kernels import nvfp4 as own

    made = own.pack(x, scale)
    return Nvfp4Rows(made.codes, made.block_scale, made.tensor_scale, x.shape[0], x.dtype)


def _by_kitchen(x: torch.Tensor, scale: torch.Tensor) -> Nvfp4Rows:
    import comfy_kitchen

    padded = bool(x.shape[0] % KITCHEN_ROWS or x.shape[1] % nvfp4.BLOCK)
    codes, block_scale = comfy_kitchen.quantize_nvfp4(x, scale, pad_16x=padded)
    return Nvfp4Rows(codes, block_scale, scale, x.shape[0], x.dtype)

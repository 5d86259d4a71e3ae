"""One operation that makes NVFP4 activations, by several families: what `nvfp4_producers.py` compares and times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from h3_kernels.cuda_library import why_unavailable

Made = tuple[torch.Tensor, ...]
BUSY_BYTES: Final = 2 << 30
"""Half a millisecond of an H200."""


def _nothing() -> None:
    """What most operations need before they run."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one input. families: what each makes, as tensors whose bits are compared; nbytes: that have to
    move; the first family is the definition. before: puts an input back that the operation overwrites; not timed."""

    operation: str
    families: dict[str, Callable[[], Made]]
    nbytes: int
    before: Callable[[], object] = _nothing


def keeping_busy(device: torch.device) -> Callable[[], object]:
    """What, queued before a call, has the device still at work when the call's own launches are queued: else a short
    call is timed by how fast the host is. It leaves nothing of the inputs in the cache."""
    if device.type != "cuda":
        return _nothing
    cleared = torch.empty(BUSY_BYTES, dtype=torch.uint8, device=device)
    return cleared.zero_


def random_normal(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """BF16, the same for the same shape."""
    source = torch.Generator(device).manual_seed(sum(shape))
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(generator=source)


def native_module(device: torch.device) -> Any:
    """`h3_kernels.nvfp4`; None where its kernels can't run."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if why_unavailable(capability) is not None:
        return None
    from h3_kernels import nvfp4 as native

    return native


def kitchen_pack(x: torch.Tensor, scale: torch.Tensor) -> Made:
    """Codes and block scales of the library, with the rows that it pads."""
    import comfy_kitchen

    made: Made = comfy_kitchen.quantize_nvfp4(x, scale, pad_16x=bool(x.shape[0] % 16))
    return made


def packed_parts(made: Any) -> Made:
    return made.codes, made.block_scale

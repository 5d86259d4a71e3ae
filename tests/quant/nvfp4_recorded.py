"""Inputs that comfy-kitchen's CUDA packer was recorded on, and the GPU's reciprocal: what the CPU's definition is held
to.

Inputs are made of integers alone, so that every machine has the same. `recorded/nvfp4_h200.json` holds for each case a
digest of codes and block scales as comfy-kitchen 0.2.40 made them on an H200; `recorded/mufu_rcp_h200.xz` holds how far
MUFU.RCP is from the rounded reciprocal there, in ulps, for every mantissa (it is the same at every exponent).
"""

import hashlib
import json
import lzma
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch

RECORDED = Path(__file__).parent / "recorded"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROWS, COLUMNS = 32, 512
TOPS = {"bf16": range(128, 256), "fp16": range(1027, 2048, 64)}
"""Largest values: every mantissa of BF16, some of FP16."""
SCALES = (1.0, 1e-3, 2.5e-7, 3e4, 2.0**-126, 1e-39, 1.2e-38, 1e-45, 0.0, 1e30, 3e38, float("inf"), float("nan"), -0.5)
"""Tensor scales that have nothing to do with the tensor."""


def cases() -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Name, x, tensor scale: every value of either dtype, in order and mixed, by each of `SCALES`; and near to normal
    values by a scale of their own, for each of `TOPS`."""
    at = torch.arange(65536)
    orders = {"in order": at, "mixed": (at * 40503 + 7) % 65536}
    for name, dtype in DTYPES.items():
        for order, patterns in orders.items():
            x = patterns.to(torch.int32).to(torch.int16).view(dtype).reshape(-1, COLUMNS)
            for scale in SCALES if order == "mixed" else SCALES[:2]:
                yield f"{name} {order} by {scale!r}", x, torch.tensor(scale)
        for top in TOPS[name]:
            x = (_bell() * (1 if name == "bf16" else 4)).to(dtype).clamp(-top, top)
            yield f"{name} up to {top}", x, torch.tensor(float(top)) * torch.tensor(1 / 2688)


@cache
def _bell() -> torch.Tensor:
    """fp32 [ROWS, COLUMNS], sums of four bytes less their mean, each row by a power of two of its own."""
    mixed = torch.arange(ROWS * COLUMNS)
    for shift, factor in ((0, 2654435761), (15, 0x2C1B3C6D), (12, 0x297A2D39)):
        mixed = ((mixed ^ (mixed >> shift)) if shift else mixed) * factor % 2**32
    mixed ^= mixed >> 15
    summed = sum((mixed >> shift & 255) for shift in (0, 8, 16, 24)) - 510
    return summed.reshape(ROWS, COLUMNS).float() * torch.exp2(-(torch.arange(ROWS) % 7).float())[:, None]


def digest(codes: torch.Tensor, scales: torch.Tensor) -> str:
    """codes uint8 [M, K/2], scales uint8 [M, K/16] in natural order; 16 hexadecimal digits."""
    return hashlib.sha256(codes.cpu().numpy().tobytes() + scales.cpu().numpy().tobytes()).hexdigest()[:16]


def digests() -> dict[str, str]:
    """By name, as recorded."""
    found: dict[str, str] = json.loads((RECORDED / "nvfp4_h200.json").read_text())["digests"]
    return found


@cache
def _deviation() -> torch.Tensor:
    """int32 [2^23], in ulps."""
    packed = np.frombuffer(lzma.decompress((RECORDED / "mufu_rcp_h200.xz").read_bytes()), dtype=np.uint8)
    pairs = np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], axis=1).reshape(-1)
    return torch.from_numpy(pairs.astype(np.int32) - 1)


def gpu_reciprocal() -> Callable[[torch.Tensor], torch.Tensor]:
    """MUFU.RCP of an H200, on a CPU."""
    deviation = _deviation()

    def reciprocal(a: torch.Tensor) -> torch.Tensor:
        rounded = torch.reciprocal(a)
        moved = (rounded.view(torch.int32) + deviation[(a.view(torch.int32) & 0x7FFFFF).long()]).view(torch.float32)
        return torch.where(torch.isfinite(rounded) & (rounded != 0), moved, rounded)

    return reciprocal
